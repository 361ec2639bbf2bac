"""Thousands of requests of every kind go through one instance; nothing may be left of them.

    python tests/python/support/soak.py [--requests N] [--seed N] [--tp N] [--promise MODE]

The same cycle of requests is repeated: prompts that share stems and prompts that nobody repeats, of
which some are matched by the engine itself in full or in part, some never get into a batch, some
are given up before or after their allocation, some have their load discarded or taken back, some
are not saved. The host tier and the store are smaller than all of it, so that both evict
all the time.

What must hold (I6 and I7): memory, threads, holds, tracked requests and queues are in the end what
they were once all was warm, every byte that was promised is right, and the last cycle hits
exactly as many blocks as the first warm one.

Exit status 1: something that must hold did not.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from support.engine import POISON, Engine, Request, Shape, make_model
from support.seeded_command import seeded_run

__all__ = ["Outcome", "run"]

KINDS = 11
CYCLES = 20
"""The first fills everything; the second is the first warm one."""
SHAPE = Shape(blocks=160)
BLOCK = SHAPE.tokens_per_block
IDLE_ID = 1 << 40
STEMS = 24
STAGING = "160KB"
STORE_BYTES = 6 << 20
LATE_THREADS = 4
"""Of a store's guard, which starts its few threads when calls first overlap."""
CHAIN_CACHE_TOKENS = 4 << 20
RSS_TOLERANCE = 3 << 20
"""For the second half. By then the store is full, and so are the names of prompts that are over.
What was seen of blocks is kept for 30 s, and which promises are open for 65,536 requests: both fill
up until then, by 2 MB in 10,000 requests. Of 240,000 requests the second half adds 0.5 MB."""


@dataclass
class Outcome:
    """What a run saw. Everything in `broken` must not have happened."""

    seed: int
    requests: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    hits_by_cycle: list[int] = field(default_factory=list)
    rss_by_cycle: list[int] = field(default_factory=list)
    blocks_verified: int = 0
    stats: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    broken: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Several lines for people."""
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.kinds.items()))
        stats = ", ".join(f"{name} {count}" for name, count in sorted(self.stats.items()))
        return (
            f"seed {self.seed}: {self.requests} requests in {self.seconds:.0f} s: {kinds}\n"
            f"blocks hit by cycle: {self.hits_by_cycle}; compared with their oracle "
            f"{self.blocks_verified}\n"
            f"resident MiB by cycle: {[round(rss / (1 << 20), 1) for rss in self.rss_by_cycle]}\n"
            f"{stats}\n"
            + "".join(f"BROKEN: {text}\n" for text in self.broken)
            + ("" if self.broken else "OK\n")
        )


class Soak:
    """One engine and the requests that it gets."""

    def __init__(self, engine: Engine, outcome: Outcome, per_cycle: int) -> None:
        self.engine, self.outcome = engine, outcome
        self._per_cycle = per_cycle
        self._next_id = 0
        self._unscheduled: list[Request] = []
        self._vanished = 0
        draw = random.Random(outcome.seed)
        self._stems = [
            [draw.randrange(32000) for _ in range(draw.randint(3, 12) * BLOCK)]
            for _ in range(STEMS)
        ]
        self._kinds: dict[str, tuple[int, Callable[[Request, random.Random], int]]] = {
            "served": (6, self._served),
            "matched in full by the engine": (2, self._matched_in_full),
            "matched in part": (2, self._matched_in_part),
            "matched within a block": (1, self._matched_within_a_block),
            "never scheduled": (2, self._never_scheduled),
            "aborted before its allocation": (1, self._aborted_early),
            "aborted after its allocation": (1, self._aborted_late),
            "load discarded": (1, self._load_discarded),
            "load taken back in part": (1, self._load_taken_back),
            "not in its first batch": (1, self._late_in_batch),
            "not saved": (1, self._not_saved),
        }

    def cycle(self) -> int:
        """The requests of a cycle, always the same but for what nobody repeats. Returns hits."""
        draw = random.Random(self.outcome.seed + 1)
        deck = [name for name, (weight, _) in self._kinds.items() for _ in range(weight)]
        hands = -(-self._per_cycle // len(deck))
        names = [name for _ in range(hands) for name in draw.sample(deck, len(deck))]
        hits = 0
        for name in names[: self._per_cycle]:
            tokens = list(draw.choice(self._stems))
            tokens = tokens[: draw.randint(1, len(tokens) // BLOCK) * BLOCK]
            self._next_id += 1
            # A tail that has never been, which is saved where it fills a block.
            tokens += [40000 + self._next_id] * draw.randint(1, 2 * BLOCK)
            hits += self._kinds[name][1](Request(self._next_id, tokens), draw)
            self.outcome.kinds[name] += 1
            self.outcome.requests += 1
            assert self.engine.drain(), "saves were not done"
        for one in self._unscheduled:
            self.engine.scheduler.request_finished(one.bound(), [])
        self._unscheduled.clear()
        return hits

    # The kinds of requests. Each returns how many blocks it was promised.

    def _served(self, one: Request, _: random.Random) -> int:
        return self._serve(one, computed=0)

    def _matched_in_full(self, one: Request, _: random.Random) -> int:
        return self._serve(one, computed=(len(one.tokens) - 1) // BLOCK * BLOCK)

    def _matched_in_part(self, one: Request, draw: random.Random) -> int:
        return self._serve(one, computed=draw.randint(0, (len(one.tokens) - 1) // BLOCK) * BLOCK)

    def _matched_within_a_block(self, one: Request, draw: random.Random) -> int:
        return self._serve(one, computed=draw.randint(0, len(one.tokens) - 1))

    def _never_scheduled(self, one: Request, draw: random.Random) -> int:
        """It is asked about again and again, and goes away some time."""
        promised = self._query(one)
        for _ in range(draw.randint(0, 2)):
            assert self._query(one) == promised
        self._unscheduled.append(one)
        if len(self._unscheduled) > 3:
            gone = self._unscheduled.pop(draw.randrange(len(self._unscheduled)))
            self.engine.scheduler.request_finished(gone.bound(), [])
        return promised

    def _aborted_early(self, one: Request, _: random.Random) -> int:
        return self.engine.lookup(one)

    def _aborted_late(self, one: Request, draw: random.Random) -> int:
        promised, pages = self.engine.start(one)
        if draw.random() < 0.5:
            self.engine.scheduler.request_reset(one.bound())
        self._end(one, pages)
        return promised

    def _load_discarded(self, one: Request, draw: random.Random) -> int:
        """Planned and bound, and the pass never came; or the request was asked about again."""
        promised, pages = self.engine.start(one)
        if draw.random() < 0.5:
            plan = self.engine.plan(one, promised, pages)
            for worker in self.engine.workers:
                worker.bind_connector_meta(plan)
        else:
            assert self._query(one) == promised
        self._end(one, pages)
        return promised

    def _load_taken_back(self, one: Request, draw: random.Random) -> int:
        promised, pages = self.engine.start(one)
        kept = draw.randint(0, promised)
        self.engine.scheduler.cancel_load(one.bound(), kept * BLOCK, promised * BLOCK)
        self._run(one, pages, loaded=kept, computed=0, promised=promised)
        return promised

    def _late_in_batch(self, one: Request, _: random.Random) -> int:
        """A plan in between emits the load of a request that it does not run."""
        engine = self.engine
        promised, pages = engine.start(one)
        plan = engine.scheduler.build_connector_meta(
            SimpleNamespace(new_requests=[], cached_requests=[])
        )
        for worker in engine.workers:
            worker.bind_connector_meta(plan)
            worker.start_load_kv(None)
            worker.wait_for_save(None)
        self._verify(one, pages, 0, promised)
        self._run(one, pages, loaded=0, computed=promised, promised=0)
        return promised

    def _not_saved(self, one: Request, _: random.Random) -> int:
        """Its content is unknown."""
        one.extra = {"prompt_embedding_table": b"\0"}
        assert self._serve(one, computed=0) == 0
        return 0

    # Their parts.

    def _query(self, one: Request, computed: int = 0) -> int:
        tokens, is_async = self.engine.scheduler.get_num_new_matched_tokens(one.bound(), computed)
        assert is_async is False
        assert tokens % BLOCK == 0
        return tokens // BLOCK

    def _serve(self, one: Request, computed: int) -> int:
        engine = self.engine
        promised = self._query(one, computed)
        assert computed + promised * BLOCK < len(one.tokens)
        pages = [engine._free.pop() for _ in range(-(-len(one.tokens) // BLOCK))]
        engine.compute(one, pages[: -(-computed // BLOCK)], 0)
        engine.scheduler.update_state_after_alloc(one.bound(), pages)
        self._run(
            one,
            pages,
            loaded=promised,
            computed=computed // BLOCK,
            promised=promised,
            begin=computed,
        )
        return promised

    def _run(
        self,
        one: Request,
        pages: list[int],
        *,
        loaded: int,
        computed: int,
        promised: int,
        begin: int | None = None,
    ) -> None:
        """The only pass of a request, whose blocks before `computed` are in place already."""
        engine = self.engine
        begin = computed * BLOCK if begin is None else begin
        data = SimpleNamespace(
            request_id=one.request_id,
            new_tokens=list(one.tokens),
            new_block_ids=list(pages),
            computed_position=begin,
            num_scheduled_tokens=len(one.tokens) - begin - promised * BLOCK,
        )
        plan = engine.scheduler.build_connector_meta(
            SimpleNamespace(new_requests=[data], cached_requests=[])
        )
        for worker in engine.workers:
            worker.bind_connector_meta(plan)
            worker.start_load_kv(None)
        self._verify(one, pages, computed, loaded)
        engine.compute(one, pages, computed + loaded)
        for worker in engine.workers:
            worker.wait_for_save(None)
            assert worker.get_finished([], []) == ([], [])
        self._end(one, pages)

    def _verify(self, one: Request, pages: list[int], first: int, count: int) -> None:
        for rank, pool in enumerate(self.engine.pools):
            for block in range(first, first + count):
                wanted = self.engine.expected(one, block, rank)
                assert (pool.bytes[pages[block]] == wanted).all(), f"rank {rank}, block {block}"
        self.outcome.blocks_verified += count

    def _end(self, one: Request, pages: list[int]) -> None:
        self.engine.scheduler.request_finished(one.bound(), pages)
        for pool in self.engine.pools:
            pool.bytes[pages] = POISON
        self.engine._free.extend(pages)

    # What may be left.

    def leftovers(self) -> dict[str, int]:
        """Everything that must be 0 when nothing runs, by name."""
        scheduler = self.engine.scheduler.stats()
        found = {name: scheduler[name] for name in ("requests_tracked", "promises_held")}
        for rank, worker in enumerate(self.engine.workers):
            stats = worker.stats()
            for name in ("holds_open", "tier_blocks_held", "fetches_in_flight", "save_queue_bytes"):
                found[f"{name} of rank {rank}"] = stats[name]
        return {name: int(count) for name, count in found.items() if count}


def resident_bytes() -> int:
    """Of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def threads() -> int:
    """Of this process."""
    return len(list(Path("/proc/self/task").iterdir()))


def run(path: Path, *, requests: int, seed: int, tp: int = 2, promise: str = "staged") -> Outcome:
    """So many requests, in cycles; `path` is a folder for the model."""
    outcome = Outcome(seed)
    began = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MC_BACKEND", "memory")
        patch.setenv("MC_PROMISE", promise)
        patch.setenv("MC_STAGING_BYTES", STAGING)
        patch.setenv("MC_MEMORY_BYTES", str(STORE_BYTES + seed % 1024))
        engine = Engine(SHAPE, make_model(path / "model", SHAPE), patch, tp=tp)
    try:
        soak = Soak(engine, outcome, requests // CYCLES)
        connect(soak)
        fill_caches(soak)
        play(soak)
    except AssertionError as error:
        outcome.broken.append(f"after {outcome.requests} requests: {error}")
    finally:
        engine.close()
    outcome.seconds = time.monotonic() - began
    return outcome


def connect(soak: Soak) -> None:
    """Until all ranks take orders."""
    give_up = time.monotonic() + 20
    while soak.engine.scheduler.stats().get("ranks_awaited", 0):
        assert time.monotonic() < give_up, "the ranks do not connect"
        soak.engine.run(Request(IDLE_ID, [1, 2, 3]))


def fill_caches(soak: Soak) -> None:
    """Prompts so long that the scheduler keeps no more of them; nobody asks for them again."""
    length = 40_000
    for number in range(CHAIN_CACHE_TOKENS // length + 2):
        soak.engine.lookup(Request(IDLE_ID + number, [50_000 + number] * length))


def play(soak: Soak) -> None:
    """All cycles, each compared with the first warm one."""
    outcome = soak.outcome
    threads_warm = 0
    for number in range(CYCLES):
        outcome.hits_by_cycle.append(soak.cycle())
        soak.engine.run(Request(IDLE_ID, [1, 2, 3]))  # its plan tells the ranks what has ended
        for name, count in soak.leftovers().items():
            outcome.broken.append(f"{name}={count} after cycle {number}")
        outcome.rss_by_cycle.append(resident_bytes())
        if number == 1:
            threads_warm = threads()
    stats = [*soak.engine.workers[0].stats().items(), *soak.engine.scheduler.stats().items()]
    outcome.stats = {
        name: int(value)
        for name, value in stats
        if value
        and name
        in (
            "blocks_staged",
            "tier_hits",
            "tier_misses",
            "tier_evictions",
            "blocks_saved",
            "blocks_already_stored",
            "saves_dropped",
            "promises_expired",
            "blocks_missed_late",
            "blocks_missed_no_room",
            "blocks_missed_no_manifest",
        )
    }
    warm, last = outcome.hits_by_cycle[1], outcome.hits_by_cycle[-1]
    if warm != last or warm == 0:
        outcome.broken.append(f"{last} blocks hit in the last cycle, {warm} in the first warm one")
    if threads() > threads_warm + LATE_THREADS:
        outcome.broken.append(f"{threads()} threads, {threads_warm} when all was warm")
    grown = outcome.rss_by_cycle[-1] - outcome.rss_by_cycle[CYCLES // 2]
    if grown > RSS_TOLERANCE:
        outcome.broken.append(f"resident memory grew by {grown} bytes")


if __name__ == "__main__":
    sys.exit(seeded_run(__doc__, run, requests=20000, tp=2))
