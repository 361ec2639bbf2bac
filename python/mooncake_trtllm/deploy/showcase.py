"""`showcase`: everything that can be shown on this machine, on a store of its own, as one report.

1. a store comes up: master, metadata server where asked for, storage;
2. the correctness gate: `selfcheck` on it; where that fails, nothing else is run;
3. `matrix`, `trace` with its warm-up curve, and `timeline` on the same store;
4. `plot`: figures and one HTML report;
5. the store goes down, also after a failure or Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mooncake_trtllm import child_guard
from mooncake_trtllm._set_by import marked
from mooncake_trtllm.cli import matrix, trace_report
from mooncake_trtllm.cli.exits import BROKEN, GOOD, UsageError
from mooncake_trtllm.cli.output import human_bytes
from mooncake_trtllm.cli.stores import check_fits
from mooncake_trtllm.cli.trace import add_model_option
from mooncake_trtllm.deploy.python_path import python_path
from mooncake_trtllm.deploy.store_commands import add_store_options
from mooncake_trtllm.local_store import LocalStore, describe_exit

__all__ = ["add_to"]

_STOP_GRACE_S = 20.0
_SETTINGS = ("MC_", "MOONCAKE_")
_QUICK_REQUESTS = 24
_TIMELINE_BYTES = 512 << 20
"""For the blocks of Llama-3.1-8B with which the load bandwidth of the timeline is measured."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "showcase",
        help="gate, matrix, trace, timeline, figures and report on a store of its own",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_store_options(parser)
    matrix.add_list_options(parser)
    add_model_option(parser)
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"only the first {_QUICK_REQUESTS} requests of the workload, and the timeline of the "
        "small simulated geometry",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/showcase"),
        metavar="DIR",
        help="default: build/showcase",
    )
    parser.set_defaults(run=_run)


@dataclass
class _Stage:
    """Runs verbs as processes of their own; what they print as JSON goes to a file each."""

    out: Path
    environment: dict[str, str]

    def run(self, name: str, *arguments: str) -> int:
        """Returns the verb's exit status, BROKEN for a crash; nothing of it is left running."""
        print(f"== {name}: mooncake-trtllm {' '.join(arguments)}", flush=True)
        began = time.monotonic()
        with open(self.out / f"{name}.json", "wb") as output:
            process = child_guard.spawn(
                [sys.executable, "-m", "mooncake_trtllm", *arguments, "--json"],
                env=self._child_environment(),
                output=output,
                errors_apart=True,
            )
            try:
                status = process.wait()
            finally:
                child_guard.stop(process, grace_s=_STOP_GRACE_S)
        seconds = time.monotonic() - began
        print(f"   ended with {describe_exit(status)} after {seconds:.1f} s", flush=True)
        return status if status >= 0 else BROKEN

    def _child_environment(self) -> dict[str, str]:
        """Without the caller's settings: they name stores and folders that are somebody's."""
        own = {name: text for name, text in os.environ.items() if not name.startswith(_SETTINGS)}
        return {**own, **marked(self.environment), "PYTHONPATH": python_path()}

    def result(self, name: str) -> dict[str, Any] | None:
        """What the verb found; None where it ended without a result."""
        try:
            content = json.loads((self.out / f"{name}.json").read_text())
        except (OSError, ValueError):
            return None
        good = isinstance(content, dict) and content.get("schema") != "error/1"
        return content if good else None


def _run(options: argparse.Namespace) -> int:
    combinations = matrix.combinations(options)
    requests = _QUICK_REQUESTS if options.quick else None
    plays = [matrix.replay_of(one, options, requests) for one in combinations]
    # The trace is one more play with two ranks; every play has a model of its own.
    segment = sum(play.bytes_needed for play in plays) + plays[-1].bytes_needed + _TIMELINE_BYTES
    check_fits(segment, "the store of the showcase")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {options.out}: {error.strerror}; remedy: another one") from error
    began = time.monotonic()
    with LocalStore(segment_bytes=segment, metadata=options.metadata, host=options.host) as store:
        print(
            f"== store {store.version} on {store.master_address}, {store.metadata_server}, "
            f"{human_bytes(segment)}",
            flush=True,
        )
        stage = _Stage(options.out, store.client_environment())
        status = _play(stage, options, requests)
    print(f"== the store is down; {time.monotonic() - began:.1f} s in all", flush=True)
    _say_end(stage, status)
    return status


def _play(stage: _Stage, options: argparse.Namespace, requests: int | None) -> int:
    """All verbs; returns the first exit status that is not 0."""
    status = stage.run("selfcheck", "selfcheck", "--backend", "mooncake")
    _say_gate(stage)
    if status != GOOD:
        print("the correctness gate failed: nothing else is run", file=sys.stderr)
        return status
    few = [] if requests is None else ["--requests", str(requests)]
    small = [] if requests is None else ["--model", "simulated"]
    model = ["--prefill-tok-per-s", str(options.prefill_tok_per_s)]
    lists = [
        *("--backends", options.backends, "--tp", options.tp),
        *("--granularity", options.granularity),
    ]
    mooncake = ["--backend", "mooncake"]
    statuses = [
        stage.run("matrix", "matrix", *lists, *few, *model, "--exclusive"),
        stage.run(
            "trace",
            *("trace", *mooncake, "--tp", "2", "--ranks", "processes", "--curve"),
            *(*few, *model, "--exclusive"),
        ),
        stage.run("timeline", "timeline", *mooncake, *model, *small),
    ]
    names = [name for name in ("selfcheck", "matrix", "trace", "timeline") if stage.result(name)]
    files = [str(stage.out / f"{name}.json") for name in names]
    statuses.append(stage.run("plot", "plot", *files, "--out", str(stage.out)))
    return next((status for status in statuses if status != GOOD), GOOD)


def _say_gate(stage: _Stage) -> None:
    content = stage.result("selfcheck")
    if content is not None:
        failed = [check for check in content["checks"] if not check["ok"]]
        print(f"   correctness gate: {len(content['checks'])} checks, {len(failed)} failed")
        for check in failed:
            print(f"   {check['name']}: {check['detail']}; remedy: {check['remedy']}")


def _say_end(stage: _Stage, status: int) -> None:
    rows, trace = stage.result("matrix"), stage.result("trace")
    if rows is not None:
        print("\n" + matrix.text(rows["rows"], rows["hit_ratio_identical"]))
    if trace is not None:
        print(
            f"trace on mooncake at {trace['load_gb_per_s']} GB/s measured: TTFT x modeled "
            f"{trace['ttft_speedup_modeled']} for the simulated geometry, "
            f"{trace[f'ttft_speedup_modeled_{trace_report.LLAMA}']} for Llama-3.1-8B bf16 "
            "(128 KiB a token)"
        )
    print(f"report: {stage.out / 'report.html'}" if stage.result("plot") else "no report")
    verdict = "OK" if status == GOOD else "BROKEN" if status == BROKEN else "NOT FINISHED"
    print(f"{verdict} (exit status {status})")
