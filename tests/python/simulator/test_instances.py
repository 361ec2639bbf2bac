"""What an instance does: reuse, room, cancellation, failure, ranks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mooncake_trtllm.simulator import (
    DTYPES,
    Geometry,
    Instance,
    InstanceConfig,
    ModelFolder,
    Prompt,
    RankError,
    SimulationError,
    thread_ranks,
)

MakeInstance = Callable[..., Instance]

LONG = list(range(3000, 3100))
"""100 tokens: 12 whole blocks of 8 can be served."""


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("max_num_tokens", [24, 4096])
def test_another_instance_reuses_every_whole_block(
    tp: int, overlap: bool, max_num_tokens: int, make_instance: MakeInstance
) -> None:
    settings = {"tp": tp, "overlap": overlap, "max_num_tokens": max_num_tokens}
    with make_instance(**settings) as first:
        cold = first.serve(Prompt(LONG, max_new_tokens=5), drain_s=5.0)
    with make_instance(**settings) as second:
        warm = second.serve(Prompt(LONG, max_new_tokens=5), drain_s=5.0)
    assert (cold.blocks_hit, cold.blocks_matchable) == (0, 12)
    assert (warm.blocks_hit, warm.blocks_verified) == (12, 12)
    assert warm.tokens_computed == 4 + 4
    assert warm.new_tokens == cold.new_tokens


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_dtype_moves_bit_exactly(dtype: str, make_instance: MakeInstance) -> None:
    geometry = Geometry(layers=2, kv_heads=2, head_dim=3, tokens_per_block=8, dtype=dtype)
    with make_instance(geometry=geometry, block_reuse=False) as instance:
        instance.serve(Prompt(LONG), drain_s=5.0)
        assert instance.serve(Prompt(LONG), drain_s=5.0).blocks_verified == 12


def test_ranks_may_be_processes(make_instance: MakeInstance) -> None:
    with make_instance(tp=2, ranks="processes", block_reuse=True) as instance:
        pids = instance.pids
        assert len({*pids, os.getpid()}) == 3
        first = instance.serve(Prompt(LONG, max_new_tokens=3), drain_s=5.0)
        again = instance.serve(Prompt(LONG, max_new_tokens=3), drain_s=5.0)
        stats = instance.stats()
    assert first.new_tokens == again.new_tokens
    assert again.local_tokens == 96
    assert [sorted(entry) for entry in stats] == [["ledger", "scheduler", "worker"]] * 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_several_requests_run_at_once_and_wait_when_the_pool_is_full(
    make_instance: MakeInstance,
) -> None:
    prompts = [Prompt([seed, *LONG], max_new_tokens=4) for seed in range(9)]
    with make_instance(pool_blocks=30, max_num_tokens=64, block_reuse=False) as instance:
        for prompt in prompts:
            instance.submit(prompt)
        results = instance.step(1)
        assert results == []
        results = instance.run()
        instance.drain()
    assert [result.ticket for result in results] == list(range(1, 10))
    assert all(result.ok for result in results)


def test_a_request_that_never_fits_is_refused(make_instance: MakeInstance) -> None:
    with (
        make_instance(pool_blocks=8) as instance,
        pytest.raises(RankError, match="13 blocks never fits a pool of 8"),
    ):
        instance.submit(Prompt(LONG))


def test_local_reuse_serves_what_the_tree_holds_and_evicts_when_full(
    make_instance: MakeInstance,
) -> None:
    with make_instance(pool_blocks=16, block_reuse=True) as instance:
        instance.serve(Prompt(LONG))
        assert instance.serve(Prompt(LONG)).local_tokens == 96
        instance.serve(Prompt([1, *LONG]))
        result = instance.serve(Prompt(LONG), drain_s=5.0)
    # Its pages were evicted for the other prompt, so the connector served it again.
    assert result.local_tokens < 96
    assert result.local_tokens // 8 + result.blocks_hit == 12


def test_partial_reuse_gives_unaligned_matches_that_are_right(make_instance: MakeInstance) -> None:
    with make_instance(partial_reuse=True) as instance:
        instance.serve(Prompt(LONG))
        result = instance.serve(Prompt([*LONG[:45], *range(60)]), drain_s=5.0)
    assert result.local_tokens == 45
    assert result.blocks_hit == 0


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("shape", ["1.1", "1.3"])
def test_a_request_may_be_cancelled_at_any_time(
    turns: int, overlap: bool, shape: str, make_instance: MakeInstance
) -> None:
    settings = {"overlap": overlap, "shape": shape, "max_num_tokens": 32, "block_reuse": False}
    with make_instance(**settings) as instance:
        ticket = instance.submit(Prompt(LONG, max_new_tokens=8))
        other = instance.submit(Prompt(LONG[5:], max_new_tokens=8))
        instance.step(turns)
        instance.cancel(ticket)
        instance.cancel(77)
        results = {result.ticket: result for result in instance.run()}
        assert results[ticket].state == "cancelled"
        assert results[other].ok
        instance.drain()


@pytest.mark.parametrize("overlap", [False, True])
def test_pages_stay_while_a_worker_reads_them(overlap: bool, make_instance: MakeInstance) -> None:
    with make_instance("PinningScheduler", "PinningWorker", tp=2, overlap=overlap) as instance:
        for prompt in (LONG, LONG[3:]):
            instance.submit(Prompt(prompt, max_new_tokens=3))
        assert all(result.ok for result in instance.run())
        instance.drain()


@pytest.mark.parametrize("tp", [1, 2])
def test_asynchronous_loads_park_and_rejoin(tp: int, make_instance: MakeInstance) -> None:
    with make_instance("AsyncScheduler", "AsyncWorker", tp=tp, block_reuse=False) as instance:
        instance.serve(Prompt(LONG), drain_s=5.0)
        parked = instance.submit(Prompt(LONG, max_new_tokens=2))
        running = instance.submit(Prompt(LONG[7:], max_new_tokens=6))
        results = {result.ticket: result for result in instance.run()}
        instance.drain()
    assert results[parked].blocks_verified == 12
    assert results[running].ok


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("retries", [0, 1])
def test_a_failed_load_fails_the_batch_closed_on_all_ranks(
    tp: int, retries: int, make_instance: MakeInstance, reference: Any
) -> None:
    with make_instance(tp=tp, block_reuse=False) as instance:
        instance.serve(Prompt(LONG), drain_s=5.0)
        # The last block of rank 1, if there is one: rank 0 loads everything.
        [key] = [key for key in reference.STORE.objects if (key[-3], key[-1]) == (11, tp - 1)]
        gone = GoneOnce(reference.STORE.objects)
        reference.STORE.objects = gone.losing(key)
        try:
            result = instance.serve(Prompt(LONG, retries=retries), drain_s=5.0)
        finally:
            reference.STORE.objects = gone.inner
    assert result.retries == retries
    assert result.ok == bool(retries)
    assert len(result.errors) == 1
    assert "gone" in result.errors[0]
    # The retry, under a new id, was served all blocks: the loss was of one moment.
    assert len(result.request_ids) == 1 + retries
    if retries:
        assert result.blocks_verified == 12


class GoneOnce(dict[Any, Any]):
    """A dict that misses one key in `get` the first time."""

    def __init__(self, inner: dict[Any, Any]) -> None:
        super().__init__(inner)
        self.inner = inner
        self.lost: object = None

    def losing(self, key: object) -> GoneOnce:
        self.lost = key
        return self

    def get(self, key: Any, default: Any = None) -> Any:
        if key == self.lost:
            self.lost = None
            return default
        return super().get(key, default)


def test_a_restarted_instance_is_a_fresh_one(make_instance: MakeInstance) -> None:
    instance = make_instance(block_reuse=True)
    instance.serve(Prompt(LONG), drain_s=5.0)
    instance.restart()
    result = instance.serve(Prompt(LONG), drain_s=5.0)
    instance.close()
    assert (result.local_tokens, result.blocks_hit) == (0, 12)


def test_a_rank_that_dies_is_a_clear_failure(make_instance: MakeInstance) -> None:
    instance = make_instance(worker="DyingWorker", tp=2, ranks="processes")
    pids = instance.pids
    with pytest.raises(RankError, match="rank 1 ended with signal SIGKILL"):
        instance.serve(Prompt(LONG))
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("ranks", ["threads", "processes"])
def test_a_rank_that_hangs_is_a_clear_failure(ranks: str, make_instance: MakeInstance) -> None:
    instance = make_instance(worker="HangingWorker", tp=2, ranks=ranks, hang_timeout_s=0.5)
    with pytest.raises(RankError, match="rank 1 did not reach a collective within"):
        instance.serve(Prompt(LONG))


@pytest.mark.parametrize("ranks", ["threads", "processes"])
def test_a_refusal_at_start_up_names_its_kind(ranks: str, make_instance: MakeInstance) -> None:
    with pytest.raises(RankError, match="MC_BACKEND='tape'") as caught:
        make_instance(worker="RefusingWorker", tp=2, ranks=ranks)
    assert caught.value.kind == "config"


def test_a_class_that_does_not_exist_is_a_clear_failure(make_instance: MakeInstance) -> None:
    with pytest.raises(RankError, match="NoSuchWorker"):
        make_instance(worker="NoSuchWorker")


def test_settings_reach_thread_ranks_while_they_start_and_are_then_put_back(
    make_instance: MakeInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MC_KV_CONFIG", "before")
    with make_instance(env={"MC_KV_CONFIG": "inside", "MC_SIM_ONLY": "1"}):
        assert os.environ["MC_KV_CONFIG"] == "before"
        assert "MC_SIM_ONLY" not in os.environ


def test_the_stand_in_for_the_runtime_goes_with_the_last_instance(
    make_instance: MakeInstance,
) -> None:
    import sys

    first, second = make_instance(), make_instance(tp=2)
    assert "tensorrt_llm._utils" in sys.modules
    first.close()
    assert "tensorrt_llm._utils" in sys.modules
    second.close()
    assert "tensorrt_llm" not in sys.modules


def test_no_thread_stays_behind(make_instance: MakeInstance) -> None:
    before = set(threading.enumerate())
    with make_instance(tp=2) as instance:
        instance.serve(Prompt(LONG))
        assert len(set(threading.enumerate()) - before) == 2
    assert set(threading.enumerate()) == before


def test_work_on_a_closed_instance_is_refused(make_instance: MakeInstance) -> None:
    instance = make_instance()
    instance.close()
    instance.close()
    with pytest.raises(SimulationError, match="not running"):
        instance.submit(Prompt(LONG))


@pytest.mark.parametrize("said", [[("failed", None)], [("alive", None)]])
def test_a_rank_that_closes_its_store_or_still_opens_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[tuple[str, None]]
) -> None:
    ended = threading.Event()

    def speaks_and_works_on(*arguments: Any, **_: object) -> None:
        for message in said:
            arguments[3].send(message)
        ended.wait(30)

    monkeypatch.setattr(thread_ranks, "serve", speaks_and_works_on)
    monkeypatch.setattr(thread_ranks, "_NOTICE_S", 0.0)
    geometry = Geometry()
    model = ModelFolder.create(tmp_path / "model", geometry)
    ranks = thread_ranks.ThreadRanks(InstanceConfig(model, geometry))
    assert ranks.receive(10) == [(0, said[0])]
    end = threading.Thread(target=ranks.end, kwargs={"failed": True})
    end.start()
    end.join(0.1)
    assert end.is_alive()
    ended.set()
    end.join(10)
    assert not end.is_alive()
