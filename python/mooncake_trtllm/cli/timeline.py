"""`timeline`: time to first token by blocks and by layers, modeled.

Nothing of these times is measured but the load bandwidth, and that only where it is not given. The
block path loads all stored KV of a prompt before it computes; the layer path computes a layer as
soon as that layer is there. Model and assumptions: mooncake_trtllm/cli/ttft_model.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mooncake_trtllm.cli import offers, stores
from mooncake_trtllm.cli.exits import BROKEN, GOOD, RunError, UsageError
from mooncake_trtllm.cli.output import (
    Progress,
    add_output_options,
    machine,
    print_json,
    rounded,
    table,
)
from mooncake_trtllm.cli.replay import Replay
from mooncake_trtllm.cli.trace import add_model_option, check_positive
from mooncake_trtllm.cli.ttft_model import Prefix
from mooncake_trtllm.simulator import Geometry
from mooncake_trtllm.simulator.workloads import prompts_workload

__all__ = ["MODELS", "add_to", "prefix_of", "run", "text"]


@dataclass(frozen=True)
class Model:
    """A geometry with the name that figures show."""

    title: str
    geometry: Geometry

    @property
    def token_bytes_per_layer(self) -> int:
        """K and V of one token in one layer, all ranks."""
        return self.geometry.token_bytes_all_layers() // self.geometry.layers


MODELS = {
    "llama-3.1-8b": Model("Llama-3.1-8B bf16", Geometry(32, 8, 128, 32)),
    "simulated": Model("simulated geometry", Geometry(8, 4, 16, 32)),
}
_PROMPTS, _ROUNDS, _TOKENS = 2, 5, 512 + 7
"""Played to measure a bandwidth; in rounds, so that first touches of memory weigh little."""


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb to the command line."""
    parser = verbs.add_parser(
        "timeline",
        help="modeled time to first token by blocks and by layers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model", choices=tuple(MODELS), default="llama-3.1-8b", help="default: llama-3.1-8b"
    )
    parser.add_argument("--layers", type=int, metavar="N", help="instead of the model's")
    parser.add_argument(
        "--token-bytes-per-layer",
        type=int,
        metavar="N",
        help="KV bytes of a token in one layer, all ranks, instead of the model's",
    )
    parser.add_argument(
        "--load-gb-per-s",
        type=float,
        metavar="G",
        help="load bandwidth; without it, that of --backend is measured with blocks of this model",
    )
    stores.add_options(parser, default="memory")
    parser.add_argument(
        "--prompt-tokens", type=int, default=8192, metavar="N", help="default: 8192"
    )
    parser.add_argument(
        "--reused",
        default="0.25,0.5,0.75,0.9",
        metavar="LIST",
        help="shares of the prompt that are stored (default: 0.25,0.5,0.75,0.9)",
    )
    add_model_option(parser)
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the verb."""
    check_positive(
        options,
        *("--layers", "--token-bytes-per-layer", "--load-gb-per-s", "--prompt-tokens"),
        "--prefill-tok-per-s",
    )
    shares = _shares(options.reused)
    model = MODELS[options.model]
    own = options.layers is not None or options.token_bytes_per_layer is not None
    if own and options.load_gb_per_s is None:
        raise UsageError(
            "--layers and --token-bytes-per-layer describe a model that cannot be run here to "
            "measure its load bandwidth; remedy: state --load-gb-per-s"
        )
    gb_per_s, source = options.load_gb_per_s, "given"
    if gb_per_s is None:
        options.backend = stores.chosen_backend(options.backend, "memory")
        gb_per_s, source = _measured_gb_per_s(model, options), "measured"
    content: dict[str, Any] = {
        "schema": "timeline/1",
        "model": "given geometry" if own else model.title,
        "layers": options.layers or model.geometry.layers,
        "token_bytes_per_layer": options.token_bytes_per_layer or model.token_bytes_per_layer,
        "load_gb_per_s": rounded(gb_per_s),
        "load_gb_per_s_source": source,
        "backend": options.backend if source == "measured" else None,
        "prefill_tok_per_s": options.prefill_tok_per_s,
    }
    content["rows"] = [
        _row(prefix_of(content, options.prompt_tokens, int(options.prompt_tokens * share)))
        for share in shares
    ]
    content["machine"] = machine()
    if options.json:
        print_json(content)
    else:
        sys.stdout.write(text(content))
    return GOOD


def prefix_of(content: dict[str, Any], prompt_tokens: int, reused_tokens: int) -> Prefix:
    """The model's input for one row of `timeline/1`."""
    return Prefix(
        prompt_tokens,
        reused_tokens,
        content["layers"],
        content["token_bytes_per_layer"],
        content["prefill_tok_per_s"],
        content["load_gb_per_s"] * 1e9,
    )


def _row(prefix: Prefix) -> dict[str, Any]:
    return {
        "prompt_tokens": prefix.prompt_tokens,
        "reused_tokens": prefix.reused_tokens,
        "bytes_loaded_modeled": prefix.reused_tokens * prefix.token_bytes_per_layer * prefix.layers,
        "ttft_recompute_s_modeled": rounded(prefix.recompute_s),
        "ttft_block_s_modeled": rounded(prefix.block_s),
        "ttft_layer_s_modeled": rounded(prefix.layer_s),
        "ttft_speedup_block_modeled": rounded(prefix.recompute_s / prefix.block_s),
        "ttft_speedup_layer_modeled": rounded(prefix.recompute_s / prefix.layer_s),
    }


def text(content: dict[str, Any]) -> str:
    """For people."""
    heading = (
        *("prompt", "reused", "recompute s", "by blocks s", "by layers s"),
        *("TTFT x modeled, blocks", "TTFT x modeled, layers"),
    )
    cells = [
        (
            row["prompt_tokens"],
            row["reused_tokens"],
            *(f"{row[f'ttft_{path}_s_modeled']:.3f}" for path in ("recompute", "block", "layer")),
            *(f"{row[f'ttft_speedup_{path}_modeled']:.2f}" for path in ("block", "layer")),
        )
        for row in content["rows"]
    ]
    where = f"measured on {content['backend']}" if content["backend"] else "given"
    return (
        f"Modeled, not measured: {content['model']}, {content['layers']} layers of "
        f"{content['token_bytes_per_layer']} bytes a token,\n{content['prefill_tok_per_s']:g} "
        f"prefill tokens/s, load bandwidth {content['load_gb_per_s']:.2f} GB/s ({where}).\n\n"
        + table(heading, cells)
    )


def _shares(given: str) -> list[float]:
    try:
        shares = [float(share) for share in given.split(",")]
    except ValueError:
        shares = []
    if not shares or not all(0 <= share < 1 for share in shares):
        raise UsageError(f"--reused {given}: must be a list of shares below 1; remedy: 0.5,0.9")
    return shares


def _measured_gb_per_s(model: Model, options: argparse.Namespace) -> float:
    """Of loads with blocks of this model, by one rank; every byte of them is verified.

    Raises RunError.
    """
    replay = Replay(
        prompts_workload(_PROMPTS, _ROUNDS, _TOKENS, model.geometry.tokens_per_block),
        model.geometry,
        1,
        "threads" if offers.in_process_only(options.backend) else "processes",
        "block",
        options.prefill_tok_per_s,
        options.verbose,
    )
    with (
        tempfile.TemporaryDirectory(prefix="mooncake-trtllm-") as folder,
        stores.open_store(options.backend, replay.bytes_needed, options.segment_bytes) as store,
        Progress("measuring the load bandwidth", _PROMPTS * _ROUNDS) as progress,
    ):
        config = replay.config(store, Path(folder), stores.run_seed(folder))
        # So that the store is read each time, as in the layer path.
        config = replace(config, env={**config.env, "MC_PROMISE": "leased"})
        stores.tell_overrides("timeline", config.env)
        report = replay.run(config, store.backend, progress.show)
        code, faults = report.verdict(
            exact=store.ours, reach=lambda: stores.check_still_there(store)
        )
    bandwidth = report.load_bandwidth()
    if code != GOOD or bandwidth is None:
        raise RunError("; ".join(faults) or "nothing was loaded", code or BROKEN)
    return bandwidth / 1e9
