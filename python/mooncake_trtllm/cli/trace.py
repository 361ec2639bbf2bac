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

from mooncake_trtllm.cli import offers, stores
from mooncake_trtllm.cli.exits import UsageError
from mooncake_trtllm.cli.output import Progress, add_output_options, machine, print_json
from mooncake_trtllm.cli.replay import PREFILL_TOK_PER_S, Replay, geometry_for
from mooncake_trtllm.cli.trace_report import TraceReport, text
from mooncake_trtllm.simulator.workloads import Workload, agentic_workload, read_fast25

__all__ = ["add_model_option", "add_to", "check_curve", "check_positive", "run"]


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb to the command line."""
    parser = verbs.add_parser(
        "trace",
        help="replay a workload through the connector and count what is reused",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    stores.add_options(parser, default="memory")
    stores.add_exclusive_option(parser)
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
        "--requests", type=int, metavar="N", help="only the first N requests (default: all)"
    )
    parser.add_argument(
        "--replay",
        action="store_true",
        help="run the workload again on a fresh instance over the warm store, and report that",
    )
    parser.add_argument(
        "--tokens-per-block", type=int, metavar="N", help="default: what the workload is made for"
    )
    add_model_option(parser)
    parser.add_argument("--curve", action="store_true", help="report each request (with --json)")
    add_output_options(parser)
    parser.set_defaults(run=run)


def add_model_option(parser: argparse.ArgumentParser) -> None:
    """The one knob of every modeled figure."""
    parser.add_argument(
        "--prefill-tok-per-s",
        type=float,
        default=PREFILL_TOK_PER_S,
        metavar="P",
        help=f"prefill rate of the modeled time to first token (default: {PREFILL_TOK_PER_S:.0f})",
    )


def check_positive(options: argparse.Namespace, *names: str) -> None:
    """Raises UsageError where an option that is given is not above zero."""
    for name in names:
        value = getattr(options, name.lstrip("-").replace("-", "_"))
        if value is not None and not value > 0:
            remedy = "1 or more" if isinstance(value, int) else "a number above 0"
            raise UsageError(f"{name} {value}: must be positive; remedy: {remedy}")


def check_curve(options: argparse.Namespace) -> None:
    """Raises UsageError where the curve has nowhere to go."""
    if options.curve and not options.json:
        raise UsageError("--curve: the text has no place for it; remedy: --json with it")


def run(options: argparse.Namespace) -> int:
    """Runs the verb."""
    check_curve(options)
    options.backend = stores.chosen_backend(options.backend, "memory")
    workload = _workload(options)
    replay = Replay(
        workload,
        geometry_for(workload, options.tokens_per_block, options.tp),
        options.tp,
        options.ranks,
        granularity=stores.granularity_of(options),
        prefill_tok_per_s=options.prefill_tok_per_s,
        verbose=options.verbose,
    )
    with (
        tempfile.TemporaryDirectory(prefix="mooncake-trtllm-") as folder,
        stores.open_store(options.backend, replay.bytes_needed, options.segment_bytes) as store,
    ):
        # On a store that others share, a model of its own keeps every run cold.
        seed = 1 if store.ours else stores.run_seed(folder)
        config = replay.config(store, Path(folder), seed)
        stores.tell_overrides("trace", config.env)
        with Progress(workload.name, len(workload)) as progress:
            report: TraceReport = replay.run(config, store.backend, progress.show)
            if options.replay and report.failure is None:
                report = replay.run(config, store.backend, progress.show)
        code, faults = report.verdict(
            exact=store.ours or options.exclusive, reach=lambda: stores.check_still_there(store)
        )
    if options.json:
        print_json({**report.row(with_curve=options.curve), "machine": machine()})
    else:
        sys.stdout.write(text(report))
    for fault in faults:
        print(f"mooncake-trtllm: broken: {fault}", file=sys.stderr)
    return code


def _workload(options: argparse.Namespace) -> Workload:
    check_positive(options, "--tp", "--prefill-tok-per-s", "--tokens-per-block", "--requests")
    if options.ranks == "processes" and offers.in_process_only(options.backend):
        raise UsageError(
            f"--ranks processes with --backend {options.backend}: the memory store lives inside "
            "one process, so other ranks and a fresh instance could not see it; remedy: "
            "--ranks threads, or --backend file or mooncake"
        )
    workload = agentic_workload() if options.input is None else read_fast25(options.input)
    return workload.first(options.requests or len(workload))
