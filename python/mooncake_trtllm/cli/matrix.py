"""`matrix`: the agentic workload on every back end, with 1 and 2 ranks, by blocks and by layers.

Each combination is played twice: `agentic` begins on a store that has none of its blocks, then
`restart` plays the same prompts on a fresh instance over the warm store. What is reused must not
depend on back end, ranks or granularity: rows of one scenario have one digest of their hits.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mooncake_trtllm.cli import offers, stores
from mooncake_trtllm.cli.exits import BROKEN, GOOD, UNREACHABLE, UsageError
from mooncake_trtllm.cli.output import Progress, add_output_options, machine, print_json, table
from mooncake_trtllm.cli.replay import Replay, geometry_for
from mooncake_trtllm.cli.trace import add_model_option, check_curve, check_positive
from mooncake_trtllm.cli.trace_report import LLAMA
from mooncake_trtllm.simulator.workloads import agentic_workload

__all__ = [
    "SCENARIOS",
    "Combination",
    "add_list_options",
    "add_to",
    "combinations",
    "identical_hits",
    "replay_of",
    "row_name",
    "run",
    "text",
]

SCENARIOS = ("agentic", "restart")


@dataclass(frozen=True)
class Combination:
    """What is the same for both scenarios."""

    backend: str
    tp: int
    granularity: str

    @property
    def ranks(self) -> str:
        """Processes wherever they can share a store: a restart is then a new process, too."""
        return "threads" if offers.in_process_only(self.backend) else "processes"


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb to the command line."""
    parser = verbs.add_parser(
        "matrix",
        help="play one workload on every back end, rank count and granularity; compare the hits",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_list_options(parser)
    parser.add_argument(
        "--requests", type=int, metavar="N", help="only the first N requests (default: all)"
    )
    stores.add_segment_option(parser)
    stores.add_exclusive_option(parser)
    add_model_option(parser)
    parser.add_argument("--curve", action="store_true", help="report each request (with --json)")
    add_output_options(parser)
    parser.set_defaults(run=run)


def add_list_options(parser: argparse.ArgumentParser) -> None:
    """Which combinations are played."""
    for name, default, what in (
        ("--backends", ",".join(offers.BACKENDS), "back ends"),
        ("--tp", "1,2", "numbers of ranks"),
        ("--granularity", ",".join(offers.GRANULARITIES), "what is stored as one object"),
    ):
        parser.add_argument(
            name, default=default, metavar="LIST", help=f"{what} (default: {default})"
        )


def run(options: argparse.Namespace) -> int:
    """Runs the verb."""
    check_positive(options, "--requests", "--prefill-tok-per-s")
    check_curve(options)
    stores.check_switched_on()  # raises for a wrong setting of the user's before anything runs
    chosen = combinations(options)
    rows: list[dict[str, Any]] = []
    faults: list[str] = []
    codes: set[int] = set()
    told: set[str] = set()
    for number, combination in enumerate(chosen):
        place = f"{number + 1}/{len(chosen)}"
        for row, (code, found) in _play(combination, options, place, told):
            rows.append(row)
            codes.add(code)
            faults += [f"{row_name(row)}: {fault}" for fault in found]
    identical = identical_hits(rows)
    if not identical and UNREACHABLE not in codes:
        codes.add(BROKEN)
        faults.append("rows of one scenario differ in their hits")
    if options.json:
        print_json(
            {
                "schema": "matrix/1",
                "rows": rows,
                "hit_ratio_identical": identical,
                "machine": machine(),
            }
        )
    else:
        sys.stdout.write(text(rows, identical))
    for fault in faults:
        print(f"mooncake-trtllm: broken: {fault}", file=sys.stderr)
    return next((code for code in (BROKEN, UNREACHABLE) if code in codes), GOOD)


def identical_hits(rows: list[dict[str, Any]]) -> bool:
    """Whether all rows of a scenario hit the same blocks, for every scenario."""
    digests: dict[str, set[str]] = {}
    for row in rows:
        digests.setdefault(row["scenario"], set()).add(row["hits_digest"])
    return all(len(found) == 1 for found in digests.values())


def row_name(row: dict[str, Any]) -> str:
    """What tells a row from the others."""
    return f"{row['scenario']} on {row['backend']}, tp {row['tp']}, by {row['granularity']}"


def text(rows: list[dict[str, Any]], identical: bool) -> str:
    """For people."""
    cells = [
        (
            row["scenario"],
            row["backend"],
            row["tp"],
            row["granularity"],
            f"{row['blocks_hit']} of {row['blocks_matchable']}",
            _number(row["block_hit_ratio"], 4),
            row["blocks_verified"],
            row["errors"],
            _number(row["load_gb_per_s"], 2),
            _number(row["save_gb_per_s"], 2),
            _number(row["ttft_speedup_modeled"], 2),
            _number(row[f"ttft_speedup_modeled_{LLAMA}"], 2),
            row["hits_digest"][:8],
        )
        for row in rows
    ]
    heading = (
        *("scenario", "backend", "tp", "objects", "blocks hit", "ratio", "verified", "errors"),
        *("load GB/s", "save GB/s", "TTFT x modeled", "same, Llama-3.1-8B", "digest"),
    )
    rate = rows[0]["prefill_tok_per_s"]
    token_bytes = rows[0]["bytes_per_block"] * rows[0]["tp"] / rows[0]["tokens_per_block"] / 1024
    return (
        table(heading, cells)
        + f"\nHit counts are {'identical' if identical else 'NOT IDENTICAL'} in each scenario.\n"
        f"TTFT x modeled: time to first token without reuse over that with it, at {rate:g} prefill "
        f"tokens/s and the load\nbandwidth measured, for the simulated geometry ({token_bytes:g} "
        "KiB a token) and for Llama-3.1-8B bf16 (128 KiB a token). Where promises are staged, load "
        "GB/s counts blocks\nthat were in host memory already, and the time of all queries.\n"
    )


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def combinations(options: argparse.Namespace) -> list[Combination]:
    """Those that the lists select. Raises UsageError that names what this build does not have."""
    backends = _list("--backends", options.backends, offers.BACKENDS)
    granularities = _list("--granularity", options.granularity, offers.GRANULARITIES)
    counts = [int(count) for count in _list("--tp", options.tp, ("1", "2", "4"))]
    return [
        Combination(backend, tp, granularity)
        for backend in backends
        for tp in counts
        for granularity in granularities
    ]


def _list(option: str, given: str, known: tuple[str, ...]) -> list[str]:
    wanted = [name.strip() for name in given.split(",")]
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"{option} {given}: '{name}' is unknown; remedy: a list of {', '.join(known)}"
            )
    if len(set(wanted)) != len(wanted):
        raise UsageError(f"{option} {given}: names one twice; remedy: each once")
    return wanted


def replay_of(
    combination: Combination, options: argparse.Namespace, requests: int | None
) -> Replay:
    """The agentic workload, or its first requests, on one combination."""
    workload = agentic_workload()
    workload = workload.first(requests or len(workload))
    return Replay(
        workload,
        geometry_for(workload, None, combination.tp),
        combination.tp,
        combination.ranks,
        combination.granularity,
        options.prefill_tok_per_s,
        getattr(options, "verbose", False),
    )


def _play(
    combination: Combination, options: argparse.Namespace, place: str, told: set[str]
) -> Iterator[tuple[dict[str, Any], tuple[int, list[str]]]]:
    """The rows of both scenarios of one combination, with the exit code and the faults of each."""
    size = None if offers.in_process_only(combination.backend) else options.segment_bytes
    replay = replay_of(combination, options, options.requests)
    with (
        tempfile.TemporaryDirectory(prefix="mooncake-trtllm-") as folder,
        stores.open_store(combination.backend, replay.bytes_needed, size) as store,
        Progress("", len(replay.workload)) as progress,
    ):
        # A model of its own: combinations share nothing, on a shared store neither.
        config = replay.config(store, Path(folder), stores.run_seed(folder))
        stores.tell_overrides("matrix", config.env, told)
        name = f"{combination.backend}, tp {combination.tp}, by {combination.granularity}"
        for scenario in SCENARIOS:
            progress.label = f"{place} {scenario} on {name}"
            report = replay.run(config, store.backend, progress.show)
            row = {"scenario": scenario, **report.row(with_curve=options.curve)}
            progress.note(
                f"{place} {scenario} on {name}: {row['blocks_hit']} of {row['blocks_matchable']} "
                f"blocks hit, {row['seconds']} s"
            )
            exact = store.ours or options.exclusive
            yield row, report.verdict(exact=exact, reach=lambda: stores.check_still_there(store))
