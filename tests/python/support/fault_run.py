"""Four rank processes serve requests from a real Mooncake Store that is killed and stopped.

    python tests/python/support/fault_run.py [--requests N] [--seed N] [--tp N] [--promise MODE]

The simulator drives the product's classes, each rank in a process of its own, over one
`mooncake_master` and one storage process. While requests run, either or both are killed and started
again, which empties them, or stopped and continued, at moments that the seed chooses, in the midst
of callbacks. Requests share stems that do not all fit into the ranks' memory, so that most
hits come from the store; some are cancelled.

What must hold: every promised byte is right (the simulator compares each with its oracle), no
request fails, no callback takes longer than is stated for it, and once the store is back its blocks
are fetched again, in the same processes. At the end nothing is held or queued any more.

The seed fixes the requests and the faults; how they meet is the machine's. Exit status 1: something
that must hold did not.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mooncake_trtllm.local_store import LocalStore
from mooncake_trtllm.simulator import (
    Geometry,
    Instance,
    InstanceConfig,
    ModelFolder,
    Prompt,
    RequestResult,
    SimulationError,
)

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from support.mortal_store import Faults, plan
from support.seeded_command import seeded_run

__all__ = ["BOUNDS_S", "Outcome", "run"]

# 16 KiB a page and rank: 60 pages of staging against 12 stems of 6 to 14 blocks each.
GEOMETRY = Geometry(layers=4, kv_heads=4, head_dim=64, tokens_per_block=16)
STAGING = "1MB"
STEMS = 12
SEGMENT_BYTES = 256 << 20
VOCABULARY = 32000

STAGE_DEADLINE_S = 1.0
LOAD_DEADLINE_S = 4.0
"""The defaults of MC_STAGE_DEADLINE_MS and MC_LOAD_DEADLINE_MS."""
BUSY_S = 1.0
"""What a busy machine may add to each: a process that is ready is not yet running."""
BOUNDS_S = {
    "get_num_new_matched_tokens": STAGE_DEADLINE_S + BUSY_S,
    "start_load_kv": LOAD_DEADLINE_S + BUSY_S,
}
"""All others do not wait for a store: BUSY_S."""
RECOVERY_S = 45.0
"""From the end of a fault until blocks come from the store again, and until all do. The master
believes in dead storage for some seconds; a store that failed is asked again ever more seldom, down
to every 10 s; and what was just stored is for 30 s not stored again, though it may be lost."""
SETTLE_S = 30.0


@dataclass
class Outcome:
    """What a run saw. Everything in `broken` must not have happened."""

    seed: int
    requests: int = 0
    states: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    blocks_hit: int = 0
    blocks_verified: int = 0
    blocks_staged: int = 0
    hits_under_fault: int = 0
    tier_misses: int = 0
    recovery_s: list[float] = field(default_factory=list)
    longest_s: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    broken: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Several lines for people."""
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        times = ", ".join(f"{name} {s:.3f}" for name, s in sorted(self.longest_s.items()))
        recoveries = sorted(self.recovery_s) or [0.0]
        return (
            f"seed {self.seed}: {self.requests} requests in {self.seconds:.0f} s, "
            f"{self.states['cancelled']} of them cancelled, {self.failed} failed\n"
            f"{sum(self.faults.values())} faults: {faults}\n"
            f"blocks promised {self.blocks_hit}, right on every rank {self.blocks_verified}, while "
            f"a fault was on {self.hits_under_fault}; fetched by rank 0 {self.blocks_staged}, "
            f"loads that had to fetch {self.tier_misses}\n"
            f"blocks came from the store again after {recoveries[len(recoveries) // 2]:.1f} s "
            f"(median), {recoveries[-1]:.1f} s at most\n"
            f"longest callbacks in s: {times}\n"
            + "".join(f"BROKEN: {text}\n" for text in self.broken)
            + ("" if self.broken else "OK\n")
        )

    def count(self, results: list[RequestResult], *, under_fault: bool) -> None:
        """Requests that ended."""
        for result in results:
            self.requests += 1
            self.states[result.state] += 1
            if result.errors or result.state not in ("finished", "cancelled"):
                self.failed += 1
                self.broken.append(f"request {result.ticket} {result.state}: {result.errors[:1]}")
            if result.ok:
                self.blocks_hit += result.blocks_hit
                self.blocks_verified += result.blocks_verified
                self.hits_under_fault += under_fault and result.blocks_hit
                if result.blocks_verified != result.blocks_hit:
                    self.broken.append(
                        f"request {result.ticket}: promised {result.blocks_hit} "
                        f"blocks, right are {result.blocks_verified}"
                    )

    def time_callbacks(self, stats: list[dict[str, Any]]) -> None:
        """The longest of each on any rank, against its bound."""
        for rank in stats:
            for name, timed in rank["ledger"].callbacks.items():
                self.longest_s[name] = max(self.longest_s.get(name, 0.0), timed.longest_s)
        for name, seconds in self.longest_s.items():
            bound = BOUNDS_S.get(name, BUSY_S)
            if seconds > bound:
                self.broken.append(f"{name} took {seconds:.3f} s, its bound is {bound:.3f} s")


class Run:
    """One instance on one store."""

    def __init__(self, instance: Instance, faults: Faults, seed: int) -> None:
        self._instance = instance
        self._faults = faults
        self._draw = random.Random(seed)
        self._stems = [
            [self._draw.randrange(VOCABULARY) for _ in range(self._draw.randint(100, 230))]
            for _ in range(STEMS)
        ]
        self.outcome = Outcome(seed)
        self._awaiting = 0
        """The fault whose end was seen last and whose recovery is awaited; 0: none."""
        self._since = 0.0
        self._staged: list[int] = []

    def play(self, requests: int, least_faults: int) -> None:
        """So many requests, and more until blocks come from the store again."""

        def more() -> bool:
            return self.outcome.requests < requests or self._faults.state()[1] < least_faults

        while more() and not self.outcome.broken:
            self._turn()
        if not self._faults.quiet(SETTLE_S):
            self.outcome.broken.append("the last fault was not mended")
        while self._unsettled() and not self.outcome.broken:
            self._turn()

    def settle(self, *, until_all_hit: bool) -> None:
        """All is well, and nothing may be left."""
        outcome, instance = self.outcome, self._instance
        outcome.count(instance.run(), under_fault=False)
        instance.drain(SETTLE_S)
        give_up = time.monotonic() + RECOVERY_S
        while (short := self._serve_all()) and until_all_hit and time.monotonic() < give_up:
            pass
        outcome.broken += short if until_all_hit else []
        give_up = time.monotonic() + SETTLE_S
        while (left := leftovers(instance.stats())) and time.monotonic() < give_up:
            instance.serve(Prompt([2, 3]))
        outcome.broken += left

    def _serve_all(self) -> list[str]:
        """Every stem once, more than memory holds: what did not hit in full."""
        short = []
        for stem in self._stems:
            result = self._instance.serve(Prompt([*stem, 1]), drain_s=SETTLE_S)
            matchable = len(stem) // GEOMETRY.tokens_per_block
            if result.blocks_verified < matchable:
                short.append(
                    f"{result.blocks_verified} of {matchable} blocks hit when all was well again"
                )
        return short

    def look(self) -> None:
        """The figures of all ranks."""
        stats = self._instance.stats()
        self.outcome.time_callbacks(stats)
        self.outcome.blocks_staged = stats[0]["worker"].get("blocks_staged", 0)
        self.outcome.tier_misses = sum(rank["worker"].get("tier_misses", 0) for rank in stats)

    def _turn(self) -> None:
        """A few requests come, some go, others run."""
        draw, instance = self._draw, self._instance
        under_fault, _, problem = self._faults.state()
        if problem:
            self.outcome.broken.append(problem)
        tickets = [instance.submit(self._prompt()) for _ in range(draw.randint(1, 4))]
        if draw.random() < 0.3:
            instance.step(draw.randint(0, 2) or 1)
            instance.cancel(draw.choice(tickets))
        ended = instance.run() if draw.random() < 0.7 else instance.step(draw.randint(1, 3))
        self.outcome.count(ended, under_fault=under_fault or self._faults.state()[0])
        self._faults.served(len(ended))
        self._watch()

    def _prompt(self) -> Prompt:
        draw = self._draw
        stem = draw.choice(self._stems)
        stem = stem[: draw.randint(len(stem) // 2, len(stem))]
        tail = [draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 40))]
        return Prompt(stem + tail, max_new_tokens=draw.randint(1, 6))

    def _watch(self) -> None:
        """Whether blocks come from the store again after a fault that is over."""
        under_fault, mended, _ = self._faults.state()
        if under_fault or mended == len(self.outcome.recovery_s):
            return
        stats = self._instance.stats()
        staged = [
            rank["worker"].get("blocks_staged", rank["worker"]["blocks_loaded"]) for rank in stats
        ]
        if self._awaiting != mended:
            self._awaiting, self._since, self._staged = mended, time.monotonic(), staged
            return
        took = time.monotonic() - self._since
        if all(now > then for now, then in zip(staged, self._staged, strict=True)):
            self.outcome.recovery_s.append(took)
            self._faults.recovered()
        elif took > RECOVERY_S:
            self.outcome.broken.append(
                f"{took:.0f} s after the fault was over nothing came from the store: "
                f"{ {k: v for k, v in stats[0]['scheduler'].items() if v and type(v) is int} }"
            )

    def _unsettled(self) -> bool:
        under_fault, mended, _ = self._faults.state()
        return under_fault or mended != len(self.outcome.recovery_s)


def leftovers(stats: list[dict[str, Any]]) -> list[str]:
    """What is held or queued though nothing is running. Requests that were cancelled, and are still
    tracked since the runtime does not tell, are the simulator's to count."""
    zero = (
        "holds_open",
        "tier_blocks_held",
        "fetches_in_flight",
        "save_queue_bytes",
        "store_calls_abandoned_now",
    )
    found = [
        f"{name}={rank['worker'][name]} on rank {number} at the end"
        for number, rank in enumerate(stats)
        for name in zero
        if rank["worker"].get(name, 0)
    ]
    held = stats[0]["scheduler"].get("promises_held", 0)
    return [*found, *([f"promises_held={held} at the end"] if held else [])]


def run(
    path: Path,
    *,
    requests: int,
    seed: int,
    tp: int = 4,
    promise: str = "staged",
    least_faults: int = 0,
    until_all_hit: bool = True,
) -> Outcome:
    """Serves so many requests of a new store, or more until there were `least_faults`.

    `path` is a folder for the model. With `until_all_hit` every stem must be stored again in the
    end, which may take half a minute.
    """
    began = time.monotonic()
    model = ModelFolder.create(path / "model", GEOMETRY)
    with LocalStore(segment_bytes=SEGMENT_BYTES, client_ttl_s=3) as store:
        environment = {
            **store.client_environment(),
            "MC_BACKEND": "mooncake",
            "MC_PROMISE": promise,
            "MC_STAGING_BYTES": STAGING,
        }
        config = InstanceConfig(
            model,
            GEOMETRY,
            tp=tp,
            ranks="processes",
            env=environment,
            block_reuse=False,
            pool_blocks=160,
            max_num_tokens=512,
            expect_saves=False,
            quiet=True,
        )
        with Faults(store, plan(seed, requests)) as faults:
            one: Run | None = None
            try:
                with Instance(config) as instance:
                    one = Run(instance, faults, seed)
                    one.play(requests, least_faults)
                    if not one.outcome.broken:
                        one.settle(until_all_hit=until_all_hit)
                    one.look()
            except SimulationError as error:
                one = one or Run(instance, faults, seed)
                one.outcome.broken.append(str(error))
            one.outcome.faults = Counter(fault.kind for fault in faults.begun)
    one.outcome.seconds = time.monotonic() - began
    return one.outcome


if __name__ == "__main__":
    sys.exit(seeded_run(__doc__, run, requests=2000, tp=4))
