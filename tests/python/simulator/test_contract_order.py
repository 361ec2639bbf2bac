"""The order and number of calls are those of the runtime's V1 manager."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from mooncake_trtllm.simulator import Geometry, Instance, Prompt

MakeInstance = Callable[..., Instance]

BLOCK_32 = Geometry(layers=3, kv_heads=2, head_dim=8, tokens_per_block=32)
WARM = list(range(48))


def recording(make: MakeInstance, **settings: Any) -> Instance:
    return make("RecordingScheduler", "RecordingWorker", **settings)


def data(reference: Any) -> list[tuple[list[Any], list[Any]]]:
    """New and cached entries of each executed batch."""
    outputs = [output for kind, output in reference.EVENTS if kind == "build"]
    return [(output.new_requests, output.cached_requests) for output in outputs]


@pytest.mark.parametrize("overlap", [False, True])
def test_eight_tokens_of_one_request_make_the_counts_that_the_runtime_makes(
    overlap: bool, make_instance: MakeInstance, reference: Any
) -> None:
    with recording(make_instance, overlap=overlap, geometry=BLOCK_32) as instance:
        instance.submit(Prompt([1, 2, 3], max_new_tokens=8))
        [result] = instance.run()
    counts = Counter(kind for kind, _ in reference.EVENTS)
    assert counts["build"] == counts["load"] == counts["save"] == counts["callable"] == 8
    assert counts["bind"] == 8
    assert counts["before_layer"] == counts["after_layer"] == 8 * 3
    assert counts["poll"] == 8 + overlap
    assert counts["query"] == counts["alloc"] == counts["finished"] == 1
    assert len(result.new_tokens) == 8


def test_one_step_follows_the_contract_call_by_call(
    make_instance: MakeInstance, reference: Any
) -> None:
    with recording(make_instance) as instance:
        instance.submit(Prompt(WARM))
        instance.run()
    layers = [("before_layer", 0), ("after_layer", 0), ("before_layer", 1), ("after_layer", 1)]
    layers += [("before_layer", 2), ("after_layer", 2)]
    kinds = [event if "layer" in event[0] else event[0] for event in reference.EVENTS]
    assert kinds == [
        *("register_callable", "register", "query", "alloc", "build", "bind", "load"),
        *layers,
        *("callable", "save", "finished", "poll"),
    ]


def test_cuda_graph_replay_fires_no_layer_hooks_but_everything_else(
    make_instance: MakeInstance, reference: Any
) -> None:
    with recording(make_instance, cuda_graphs=True) as instance:
        instance.submit(Prompt(WARM, max_new_tokens=4))
        instance.run()
    counts = Counter(kind for kind, _ in reference.EVENTS)
    assert counts["before_layer"] == counts["after_layer"] == 3
    assert counts["load"] == counts["callable"] == counts["save"] == 4


@pytest.mark.parametrize("batched", [True, False])
def test_queries_come_before_all_allocations_or_each_beside_its_own(
    batched: bool, make_instance: MakeInstance, reference: Any
) -> None:
    with recording(make_instance, batched_queries=batched) as instance:
        instance.submit(Prompt([1, 2, 3]))
        instance.submit(Prompt([4, 5, 6]))
        instance.run()
    kinds = [kind for kind, _ in reference.EVENTS if kind in ("query", "alloc")]
    together = ["query", "query", "alloc", "alloc"]
    assert kinds == (together if batched else ["query", "alloc"] * 2)


@pytest.mark.parametrize("overlap", [False, True])
def test_request_data_are_deltas_and_lag_under_the_overlap_scheduler(
    overlap: bool, make_instance: MakeInstance, reference: Any
) -> None:
    prompt = list(range(100, 162))
    with recording(make_instance, geometry=BLOCK_32, overlap=overlap) as instance:
        instance.submit(Prompt(prompt, max_new_tokens=6))
        [result] = instance.run()
    steps = data(reference)
    [first], cached = steps[0]
    assert cached == []
    assert (first.new_tokens, first.computed_position, first.num_scheduled_tokens) == (
        prompt,
        0,
        62,
    )
    assert len(first.new_block_ids) == 2
    assert len(first.block_hashes) == 1
    later = [entry for new, [entry] in steps[1:] if new == []]
    assert len(later) == 5
    lag = 1 if overlap else 0
    # Without a lag each step tells the token sampled by the one before.
    tokens = [entry.new_tokens for entry in later]
    expected = [[token] for token in result.new_tokens[:5]]
    assert tokens == ([[], *expected[:4]] if overlap else expected)
    assert [entry.computed_position for entry in later] == [62 - lag + i for i in range(5)]
    # The third page is needed for position 64, whatever the host knows.
    grown = [len(entry.new_block_ids) for entry in later]
    assert grown == [0, 0, 1, 0, 0]
    assert all(entry.num_scheduled_tokens == 1 for entry in later)


def test_a_chunked_prompt_reports_all_tokens_and_pages_with_its_first_chunk(
    make_instance: MakeInstance, reference: Any
) -> None:
    prompt = list(range(50))
    with recording(make_instance, max_num_tokens=20) as instance:
        instance.submit(Prompt(prompt))
        instance.run()
    steps = data(reference)
    [first], _ = steps[0]
    assert first.new_tokens == prompt
    assert len(first.new_block_ids) == 7
    entries = [first] + [entry for _, [entry] in steps[1:]]
    # Chunk ends are floored to whole blocks of 8.
    assert [(e.computed_position, e.num_scheduled_tokens) for e in entries] == [
        (0, 16),
        (16, 16),
        (32, 18),
    ]
    assert all(entry.new_tokens == entry.new_block_ids == [] for entry in entries[1:])


def test_a_synchronous_match_is_subtracted_from_the_first_report_only(
    make_instance: MakeInstance, reference: Any
) -> None:
    with recording(make_instance, block_reuse=False, max_num_tokens=16) as instance:
        instance.serve(Prompt(WARM[:17]))
        reference.EVENTS.clear()
        result = instance.serve(Prompt(WARM))
    assert result.blocks_hit == 2
    steps = data(reference)
    entries = [*steps[0][0]] + [entry for _, [entry] in steps[1:]]
    assert [(e.computed_position, e.num_scheduled_tokens) for e in entries] == [(0, 16), (32, 16)]


def test_an_asynchronous_match_is_part_of_the_first_report(
    make_instance: MakeInstance, reference: Any
) -> None:
    with make_instance("AsyncScheduler", "AsyncWorker", block_reuse=False) as instance:
        instance.serve(Prompt(WARM))
        result = instance.serve(Prompt(WARM), drain_s=5.0)
    assert result.blocks_hit == result.blocks_verified == 5


def test_the_early_shape_has_no_later_fields_and_ends_every_request_aloud(
    make_instance: MakeInstance, reference: Any
) -> None:
    with recording(make_instance, shape="1.1") as instance:
        ticket = instance.submit(Prompt(WARM, max_new_tokens=9))
        instance.step()
        instance.cancel(ticket)
        [result] = instance.run()
        instance.drain()
    assert result.state == "cancelled"
    [entry], _ = data(reference)[0]
    assert not hasattr(entry, "block_hashes")
    assert not hasattr(entry, "cache_salt")
    assert ("finished", (result.request_ids[0], 7)) in reference.EVENTS


def test_the_overlap_scheduler_meets_a_request_that_ended_early_once_more(
    make_instance: MakeInstance, reference: Any
) -> None:
    with recording(make_instance, overlap=True) as instance:
        instance.submit(Prompt(WARM, max_new_tokens=9, eos_after=3))
        [result] = instance.run()
        instance.drain()
    request_id = result.request_ids[0]
    finished = [content for kind, content in reference.EVENTS if kind == "finished"]
    assert finished == [(request_id, 7), (request_id, 0)]
    assert len(result.new_tokens) == 3


def test_idle_turns_poll_without_metadata(make_instance: MakeInstance, reference: Any) -> None:
    with recording(make_instance) as instance:
        reference.EVENTS.clear()
        instance.step(3)
        assert [kind for kind, _ in reference.EVENTS] == ["poll"] * 3
    with recording(make_instance, unguarded_metadata=True) as instance:
        reference.EVENTS.clear()
        instance.step(2)
        assert [kind for kind, _ in reference.EVENTS] == ["build", "bind", "poll"] * 2
        assert reference.EVENTS[0] == ("build", None)


def test_the_bound_request_has_bound_attributes_alone(make_instance: MakeInstance) -> None:
    from mooncake_trtllm.simulator.messages import BoundRequest

    prompt = Prompt(WARM, cache_salt=5, attributes={"prompt_embedding_table": b""})
    request = BoundRequest(9, prompt, list(WARM), 48, position=0, chunk=48)
    assert (request.cache_salt, request.cache_salt_id) == (None, 5)
    assert request.prompt_embedding_table == b""
    assert not any(name.startswith("py_") for name in dir(request))
    assert not hasattr(request, "num_connector_matched_tokens")
    tokens = request.get_tokens(0)
    tokens.clear()
    assert len(request.get_tokens(0)) == 48


def test_both_classes_are_constructed_at_once(make_instance: MakeInstance) -> None:
    with make_instance("MeetingScheduler", "MeetingWorker") as instance:
        assert instance.serve(Prompt(WARM)).ok
