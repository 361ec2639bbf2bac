"""A real store is killed and stopped under four ranks: the short form of `make fault-test`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support import fault_run, mortal_store

REQUESTS = 60
FAULTS = 3
SEED = 20261130


@pytest.mark.mooncake
@pytest.mark.slow
def test_no_fault_of_the_store_is_seen_by_a_request(tmp_path: Path) -> None:
    outcome = fault_run.run(
        tmp_path, requests=REQUESTS, seed=SEED, least_faults=FAULTS, until_all_hit=False
    )
    assert not outcome.broken, outcome.text()
    assert (outcome.failed, outcome.tier_misses) == (0, 0)
    assert sum(outcome.faults.values()) >= FAULTS
    assert outcome.blocks_verified == outcome.blocks_hit > 30
    assert len(outcome.recovery_s) == sum(outcome.faults.values())


def test_a_seed_is_one_plan_with_every_kind_of_fault() -> None:
    planned = mortal_store.plan(SEED, 12)
    assert planned == mortal_store.plan(SEED, 12)
    assert planned != mortal_store.plan(SEED + 1, 12)
    assert set(Counter(fault.kind for fault in planned).values()) == {2}


def test_the_judge_sees_a_request_that_failed_and_a_callback_that_was_late() -> None:
    """A run that finds nothing proves something only if it would find something."""
    from mooncake_trtllm.simulator import RequestResult
    from mooncake_trtllm.simulator.ledger import CallbackTime, Ledger

    good = RequestResult(1, [1], "finished", 33, 2, blocks_hit=2, blocks_verified=2)
    failed = RequestResult(2, [2], "failed", 33, 2, errors=["lost"])
    retried = RequestResult(3, [3, 4], "finished", 33, 2, errors=["lost"])
    wrong = RequestResult(4, [5], "finished", 33, 2, blocks_hit=2, blocks_verified=1)
    outcome = fault_run.Outcome(seed=1)
    outcome.count([good], under_fault=False)
    assert not outcome.broken
    for count, result in enumerate((failed, retried, wrong), 1):
        outcome.count([result], under_fault=True)
        assert len(outcome.broken) == count
    for name, bound in (*fault_run.BOUNDS_S.items(), ("wait_for_save", fault_run.BUSY_S)):
        for seconds, late in ((bound, 0), (bound + 0.1, 1)):
            timed = fault_run.Outcome(seed=1)
            ledger = Ledger(1, callbacks={name: CallbackTime(1, seconds, seconds)})
            timed.time_callbacks([{"ledger": ledger}])
            assert len(timed.broken) == late, name
