"""`trace`: replays a workload through the connector and reports what was reused.

So that hit counts are a property of connector and workload alone, one request runs at a time, its
saves are drained before the next one, nothing is reused locally, everything that the store has is
loaded, and prompts alone are saved (each request ends with its first token).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from mooncake_trtllm.cli import stores
from mooncake_trtllm.cli.exits import BROKEN, GOOD, UsageError, exit_code
from mooncake_trtllm.cli.output import Progress, print_json
from mooncake_trtllm.cli.trace_report import TraceReport, text
from mooncake_trtllm.simulator import (
    Geometry,
    Instance,
    InstanceConfig,
    ModelFolder,
    Prompt,
    SimulationError,
)
from mooncake_trtllm.simulator.workloads import (
    IdealCache,
    Workload,
    agentic_workload,
    read_fast25,
)

__all__ = ["add_to", "run"]

_DRAIN_S = 60.0
_CALLBACK_BOUND_S = 70.0
_NO_DEADLINE = {"MC_STAGE_DEADLINE_MS": "60000", "MC_LOAD_DEADLINE_MS": "60000"}
"""A slow machine must not cost hits: the largest that both settings take."""


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb to the command line."""
    parser = verbs.add_parser(
        "trace",
        help="replay a workload through the connector and count what is reused",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    stores.add_options(parser, default="memory")
    stores.add_granularity(parser)
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="ranks (default: 1)")
    parser.add_argument(
        "--ranks",
        choices=("threads", "processes"),
        default="threads",
        help="each rank a thread of this process or a process of its own (default: threads)",
    )
    parser.add_argument(
        "--input", type=Path, metavar="FILE", help="a trace in FAST25 format (default: agentic)"
    )
    parser.add_argument(
        "--replay",
        action="store_true",
        help="run the workload again on a fresh instance over the warm store, and report that",
    )
    parser.add_argument(
        "--tokens-per-block", type=int, metavar="N", help="default: what the workload is made for"
    )
    parser.add_argument(
        "--prefill-tok-per-s",
        type=float,
        default=3000.0,
        metavar="P",
        help="prefill rate of the modeled time to first token (default: 3000)",
    )
    parser.add_argument("--curve", action="store_true", help="report each request (with --json)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the verb."""
    workload = _workload(options)
    geometry = _geometry(options, workload)
    ideal = IdealCache(geometry.tokens_per_block)
    ideal_hits = [ideal.serve(tokens) for tokens in workload]
    needed = stores.segment_bytes(ideal.blocks, geometry.block_bytes(), options.tp, geometry.layers)
    with (
        tempfile.TemporaryDirectory(prefix="mooncake-trtllm-") as folder,
        stores.open_store(options.backend, needed, options.segment_bytes) as store,
    ):
        config = _config(options, workload, geometry, store, Path(folder), needed)
        report = _replay(config, workload, ideal_hits, options, store.backend)
        if options.replay and report.failure is None:
            ideal_hits = [ideal.serve(tokens) for tokens in workload]
            report = _replay(config, workload, ideal_hits, options, store.backend)
    if options.json:
        print_json(report.row(with_curve=options.curve))
    else:
        sys.stdout.write(text(report))
    faults = report.faults(exact=store.ours)
    for fault in faults:
        print(f"mooncake-trtllm: broken: {fault}", file=sys.stderr)
    return BROKEN if faults else GOOD


def _workload(options: argparse.Namespace) -> Workload:
    for name, value in (("--tp", options.tp), ("--prefill-tok-per-s", options.prefill_tok_per_s)):
        if not value > 0:
            raise UsageError(f"{name} {value}: must be positive; remedy: correct it")
    if options.tokens_per_block is not None and options.tokens_per_block < 1:
        raise UsageError(
            f"--tokens-per-block {options.tokens_per_block}: must be positive; remedy: 32 is usual"
        )
    if options.ranks == "processes" and options.backend == "memory":
        raise UsageError(
            "--ranks processes with --backend memory: the memory store lives inside one process, "
            "so other ranks and a fresh instance could not see it; remedy: --ranks threads, or "
            "--backend file or mooncake"
        )
    return agentic_workload() if options.input is None else read_fast25(options.input)


def _geometry(options: argparse.Namespace, workload: Workload) -> Geometry:
    """64 KiB a block of the agentic workload, 16 KiB a block of 512 tokens, over all ranks."""
    tokens_per_block = options.tokens_per_block or workload.tokens_per_block
    agentic = options.input is None
    heads, head_dim, layers = (4, 16, 8) if agentic else (2, 2, 2)
    if heads % options.tp:
        raise UsageError(
            f"--tp {options.tp}: does not divide the {heads} KV heads of this workload's model; "
            f"remedy: a divisor of {heads}"
        )
    return Geometry(
        layers=layers, kv_heads=heads, head_dim=head_dim, tokens_per_block=tokens_per_block
    )


def _config(
    options: argparse.Namespace,
    workload: Workload,
    geometry: Geometry,
    store: stores.RunStore,
    folder: Path,
    needed: int,
) -> InstanceConfig:
    longest = workload.longest + 1
    # On a store that others share, a model of its own keeps every run cold.
    seed = 1 if store.ours else stores.run_seed(folder)
    return InstanceConfig(
        ModelFolder.create(folder / "model", geometry, weights_seed=seed),
        geometry,
        tp=options.tp,
        ranks=options.ranks,
        env={
            **store.env,
            **_NO_DEADLINE,
            **stores.granularity_env(options),
            "MC_MEMORY_BYTES": str(needed),
        },
        pool_blocks=-(-longest // geometry.tokens_per_block) + 1,
        max_num_tokens=max(longest, geometry.tokens_per_block),
        block_reuse=False,
        callback_bound_s=_CALLBACK_BOUND_S,
        hang_timeout_s=2 * _CALLBACK_BOUND_S,
    )


def _replay(
    config: InstanceConfig,
    workload: Workload,
    ideal_hits: list[int],
    options: argparse.Namespace,
    backend: str,
) -> TraceReport:
    """One instance, from cold start to close, over the whole workload."""
    report = TraceReport(config, backend, options.prefill_tok_per_s, ideal_hits)
    progress = Progress(workload.name, len(workload))
    try:
        with Instance(config) as instance:
            report.begin()
            for index, tokens in enumerate(workload):
                report.add(instance.serve(Prompt(tokens), drain_s=_DRAIN_S))
                progress.show(index + 1)
            report.end(instance.stats())
    except SimulationError as error:
        if exit_code(error) != BROKEN:
            raise
        report.fail(str(error))
    finally:
        progress.clear()
    return report
