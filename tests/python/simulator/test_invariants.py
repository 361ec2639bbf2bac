"""Each deliberately broken connector is caught, by the invariant that names its deed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mooncake_trtllm.simulator import (
    INVARIANTS,
    Instance,
    InvariantError,
    Media,
    Prompt,
)
from mooncake_trtllm.simulator.ledger import Ledger

MakeInstance = Callable[..., Instance]
Scenario = Callable[[MakeInstance, str, str, Any], None]

PROMPT = list(range(1000, 1045))
OTHER = list(range(2000, 2045))


def reuse(make: MakeInstance, scheduler: str, worker: str, reference: Any) -> None:
    """One instance stores, another one loads."""
    with make(scheduler, worker, block_reuse=False) as first:
        first.serve(Prompt(PROMPT), drain_s=5.0)
        first.serve(Prompt(OTHER), drain_s=5.0)
    with make(scheduler, worker, block_reuse=False) as second:
        second.serve(Prompt(PROMPT), drain_s=5.0)


def reuse_of_whole_blocks(make: MakeInstance, scheduler: str, worker: str, _: Any) -> None:
    """As above, with a prompt that ends with a block."""
    with make(scheduler, worker, block_reuse=False) as instance:
        instance.serve(Prompt(PROMPT[:40]), drain_s=5.0)
        instance.serve(Prompt(PROMPT[:40]), drain_s=5.0)


def two_salts(make: MakeInstance, scheduler: str, worker: str, _: Any) -> None:
    with make(scheduler, worker, block_reuse=False) as instance:
        instance.serve(Prompt(PROMPT, cache_salt="5"))
        instance.serve(Prompt(PROMPT, cache_salt=5))


def two_images(make: MakeInstance, scheduler: str, worker: str, _: Any) -> None:
    with make(scheduler, worker, block_reuse=False) as instance:
        instance.serve(Prompt(PROMPT, media=(Media(bytes(32), 4, 6),)))
        instance.serve(Prompt(PROMPT, media=(Media(bytes(31) + b"1", 4, 6),)))


def same_block_elsewhere(make: MakeInstance, scheduler: str, worker: str, _: Any) -> None:
    with make(scheduler, worker, block_reuse=False) as instance:
        instance.serve(Prompt([*range(8), *range(50, 58), 1]))
        instance.serve(Prompt([*range(50, 58), *range(8), 1]))


def store_loses_a_block(make: MakeInstance, scheduler: str, worker: str, reference: Any) -> None:
    """A block goes between promise and load."""
    with make(scheduler, worker, block_reuse=False) as instance:
        instance.serve(Prompt(PROMPT))
        original = reference.Scheduler.has

        def has(self: Any, key: Any) -> bool:
            found = bool(original(self, key))
            with reference.STORE.lock:
                reference.STORE.objects.pop((*key, 0), None)
            return found

        reference.Scheduler.has = has
        try:
            instance.serve(Prompt(PROMPT))
        finally:
            reference.Scheduler.has = original


def partial_local_match(make: MakeInstance, scheduler: str, worker: str, _: Any) -> None:
    with make(scheduler, worker, partial_reuse=True) as instance:
        instance.serve(Prompt(PROMPT))
        instance.serve(Prompt([*PROMPT[:20], *OTHER[20:]]))


def slow_store(make: MakeInstance, scheduler: str, worker: str, reference: Any) -> None:
    reference.STORE.delay_s = 0.2
    with make(scheduler, worker, callback_bound_s=0.1) as instance:
        instance.serve(Prompt(PROMPT))


def impatient(make: MakeInstance, scheduler: str, worker: str, _: Any) -> None:
    with make(scheduler, worker, stall_timeout_s=0.3) as instance:
        instance.serve(Prompt(PROMPT))


CASES: list[tuple[str, str, str, Scenario]] = [
    ("I1", "Scheduler", "FlipsAByteWorker", reuse),
    ("I1", "Scheduler", "WrongPageWorker", reuse),
    ("I1", "Scheduler", "SkipsLastLoadWorker", reuse),
    ("I1", "Scheduler", "SavesTooEarlyWorker", reuse),
    ("I1", "SaltBlindScheduler", "Worker", two_salts),
    ("I1", "PrefixBlindScheduler", "Worker", same_block_elsewhere),
    ("I1", "MediaBlindScheduler", "Worker", two_images),
    ("I1", "UnverifiedPromiseScheduler", "IgnoresMissingWorker", reuse),
    ("I1", "Scheduler", "IgnoresMissingWorker", store_loses_a_block),
    ("I2", "WholePromptScheduler", "Worker", reuse_of_whole_blocks),
    ("I2", "PartialBlockScheduler", "Worker", reuse),
    ("I2", "UnalignedScheduler", "Worker", partial_local_match),
    ("I2", "AsyncZeroScheduler", "Worker", reuse),
    ("I3", "PinningScheduler", "DoubleReportWorker", reuse),
    ("I3", "Scheduler", "StrangeReportWorker", reuse),
    ("I4", "Scheduler", "LateWriteWorker", reuse),
    ("I4", "Scheduler", "AstrayWriteWorker", reuse),
    ("I5", "Scheduler", "SlowWorker", slow_store),
    ("I6", "PinningScheduler", "NeverReportsWorker", impatient),
    ("I6", "Scheduler", "LeavesQueueWorker", reuse),
    ("I6", "Scheduler", "NeverDrainsWorker", reuse),
    ("I6", "ForgetfulScheduler", "Worker", reuse),
    ("I7", "Scheduler", "BoastingWorker", reuse),
    ("I7", "Scheduler", "ForgetsSavesWorker", reuse),
    ("I7", "Scheduler", "CountsSavesTwiceWorker", reuse),
    ("I8", "RaisingScheduler", "Worker", reuse),
    ("I8", "Scheduler", "RaisingWorker", reuse),
    ("I8", "UnpicklableScheduler", "Worker", reuse),
]


@pytest.mark.parametrize(
    ("invariant", "scheduler", "worker", "scenario"),
    CASES,
    ids=[f"{i}-{s}-{w}-{scenario.__name__}" for i, s, w, scenario in CASES],
)
def test_a_broken_connector_is_caught(
    invariant: str,
    scheduler: str,
    worker: str,
    scenario: Scenario,
    make_instance: MakeInstance,
    reference: Any,
) -> None:
    with pytest.raises(InvariantError) as caught:
        scenario(make_instance, scheduler, worker, reference)
    assert caught.value.invariant == invariant, str(caught.value)


@pytest.mark.parametrize(
    "scenario",
    list(dict.fromkeys(case[3] for case in CASES if case[3] is not store_loses_a_block)),
)
def test_the_sound_connector_passes_the_same_scenarios(
    scenario: Scenario, make_instance: MakeInstance, reference: Any
) -> None:
    scenario(make_instance, "Scheduler", "Worker", reference)


def test_a_late_write_to_a_page_that_only_the_local_cache_holds_is_caught(
    make_instance: MakeInstance,
) -> None:
    with (
        pytest.raises(InvariantError) as caught,
        make_instance(worker="LateWriteWorker", block_reuse=True) as instance,
    ):
        instance.serve(Prompt(PROMPT), drain_s=5.0)
    assert caught.value.invariant == "I4"


def test_a_sound_connector_whose_block_vanishes_fails_closed(
    make_instance: MakeInstance, reference: Any
) -> None:
    with make_instance(block_reuse=False) as instance:
        instance.serve(Prompt(PROMPT))
        original = reference.Scheduler.has
        lost: list[object] = []

        def has(self: Any, key: Any) -> bool:
            found = bool(original(self, key))
            if found and not lost:
                lost.append(reference.STORE.objects.pop((*key, 0)))
            return found

        reference.Scheduler.has = has
        try:
            result = instance.serve(Prompt(PROMPT, retries=1), drain_s=5.0)
        finally:
            reference.Scheduler.has = original
    assert result.ok
    assert result.retries == 1
    assert len(result.errors) == 1
    assert len(result.request_ids) == 2
    assert result.blocks_hit == 0


def test_every_invariant_has_a_broken_connector() -> None:
    assert {case[0] for case in CASES} == set(INVARIANTS)


@pytest.mark.parametrize("seen", ["blocks_staged", "stage_short_rejected", "stage_short_missing"])
def test_what_is_refused_before_it_is_promised_raises_nothing(seen: str) -> None:
    """A fetch may come too late for every promise, and end no order, when its block is refused."""
    ledger = Ledger(page_bytes=64)
    ledger.check_worker({seen: 1, "rejected_checksum": 5}, expect_saves=False)
    with pytest.raises(InvariantError, match="5 as rejected, but 0 loads raised"):
        ledger.check_worker({"rejected_checksum": 5}, expect_saves=False)
    with pytest.raises(InvariantError, match="1 blocks counted as missing or unavailable"):
        ledger.check_worker({seen: 1, "loads_missing": 1}, expect_saves=False)
