"""Schedulers find the worker of their own instance, and no other."""

from __future__ import annotations

import gc
import weakref

import pytest

from mooncake_trtllm._rendezvous import (
    OwnWorkerUnknownError,
    Rendezvous,
    SchedulerEntry,
    WorkerEntry,
)

A, B = b"keyspace a", b"keyspace b"


class Args:
    """Stands for the runtime's arguments."""


def test_nothing_is_known_before_the_pool() -> None:
    table = Rendezvous()
    args = Args()
    scheduler = table.add_scheduler(args, "identity")
    assert table.keyspace_for(scheduler) is None
    worker = table.add_worker(args, "identity")
    assert table.keyspace_for(scheduler) is None
    table.publish(worker, A, lambda: 1)
    assert table.keyspace_for(scheduler) == A


def test_instances_are_told_apart_by_their_arguments() -> None:
    table = Rendezvous()
    first, second = Args(), Args()
    schedulers = [table.add_scheduler(args, "same") for args in (first, second)]
    table.publish(table.add_worker(second, "same"), B, lambda: 1)
    worker = table.add_worker(first, "same")
    assert table.keyspace_for(schedulers[0]) is None  # its own worker is there, not yet ready
    table.publish(worker, A, lambda: 1)
    assert [table.keyspace_for(s) for s in schedulers] == [A, B]


def test_copies_of_the_arguments_are_known_by_identity() -> None:
    table = Rendezvous()
    scheduler = table.add_scheduler(Args(), "same")
    table.publish(table.add_worker(Args(), "other"), B, lambda: 1)
    assert table.keyspace_for(scheduler) is None
    table.publish(table.add_worker(Args(), "same"), A, lambda: 1)
    assert table.keyspace_for(scheduler) == A


def test_two_copies_that_disagree_say_nothing() -> None:
    table = Rendezvous()
    scheduler = table.add_scheduler(Args(), "same")
    workers = [table.add_worker(Args(), "same") for _ in range(2)]
    table.publish(workers[0], A, lambda: 1)
    assert table.keyspace_for(scheduler) is None
    table.publish(workers[1], B, lambda: 1)
    assert table.keyspace_for(scheduler) is None
    table.remove(workers[1])
    assert table.keyspace_for(scheduler) == A


def two_of_one_object(
    args: Args,
) -> tuple[Rendezvous, list[SchedulerEntry], list[WorkerEntry]]:
    """Instances of keyspaces A and B, whose schedulers and workers have the same arguments."""
    table = Rendezvous()
    schedulers, workers = [], []
    for keyspace in (A, B):
        schedulers.append(table.add_scheduler(args, "same"))
        workers.append(table.add_worker(args, "same"))
        table.publish(workers[-1], keyspace, lambda: 1)
    return table, schedulers, workers


def test_instances_made_from_one_object_pair_up_in_order() -> None:
    """Equal arguments, one object, pools of different types: only the order tells."""
    args = Args()
    table, schedulers, workers = two_of_one_object(args)
    assert [table.keyspace_for(s) for s in schedulers] == [A, B]
    table.remove(schedulers[0])
    assert table.keyspace_for(schedulers[1]) == B  # what was certain stays so
    table.remove(workers[1])
    assert table.keyspace_for(schedulers[1]) is None  # and goes with the worker


def test_without_as_many_schedulers_as_workers_nothing_is_certain() -> None:
    args = Args()
    table, schedulers, _ = two_of_one_object(args)
    table.remove(schedulers[0])
    assert table.keyspace_for(schedulers[1]) is None


@pytest.mark.parametrize("asks_first", [0, 1])
def test_schedulers_made_before_the_second_worker_do_not_share_the_first(asks_first: int) -> None:
    """Whichever asks first: the first worker is the first scheduler's, and it waits to be sure."""
    table = Rendezvous()
    args = Args()
    schedulers = [table.add_scheduler(args, "same") for _ in range(2)]
    table.publish(table.add_worker(args, "same"), A, lambda: 1, stage_worker="first")
    for scheduler in (schedulers[asks_first], schedulers[1 - asks_first]):
        assert table.keyspace_for(scheduler) is None
        with pytest.raises(OwnWorkerUnknownError):
            table.stage_worker_for(scheduler, A)
    table.publish(table.add_worker(args, "same"), A, lambda: 1, stage_worker="second")
    found = {}
    for index in (asks_first, 1 - asks_first):
        assert table.keyspace_for(schedulers[index]) == A
        found[index] = table.stage_worker_for(schedulers[index], A)
    assert found == {0: "first", 1: "second"}


def test_a_scheduler_that_comes_later_does_not_take_a_worker_that_has_one() -> None:
    table = Rendezvous()
    args = Args()
    first = table.add_scheduler(args, "same")
    worker = table.add_worker(args, "same")
    table.publish(worker, A, lambda: 1, stage_worker="first")
    assert table.stage_worker_for(first, A) == "first"
    second = table.add_scheduler(args, "same")
    assert table.keyspace_for(second) is None
    with pytest.raises(OwnWorkerUnknownError):
        table.stage_worker_for(second, A)
    assert table.keyspace_for(first) == A
    table.remove(worker)  # one that is left over keeps nobody from a worker of its own
    table.publish(table.add_worker(args, "same"), A, lambda: 1, stage_worker="second")
    assert table.stage_worker_for(second, A) == "second"
    assert table.keyspace_for(first) is None


def test_of_two_schedulers_with_copies_none_takes_the_only_worker() -> None:
    table = Rendezvous()
    schedulers = [table.add_scheduler(Args(), "same") for _ in range(2)]
    table.publish(table.add_worker(Args(), "same"), A, lambda: 1, stage_worker="one")
    for scheduler in schedulers:
        assert table.keyspace_for(scheduler) == A
        with pytest.raises(OwnWorkerUnknownError):
            table.stage_worker_for(scheduler, A)
    table.remove(schedulers[0])
    assert table.stage_worker_for(schedulers[1], A) == "one"


def test_orders_go_to_the_own_worker_or_to_none() -> None:
    table = Rendezvous()
    args = Args()
    schedulers, workers = [], []
    for name in ("first", "second"):
        schedulers.append(table.add_scheduler(args, "same"))
        workers.append(table.add_worker(args, "same"))
        table.publish(workers[-1], A, lambda: 1, stage_worker=name)
    assert [table.stage_worker_for(s, A) for s in schedulers] == ["first", "second"]
    with pytest.raises(OwnWorkerUnknownError):
        table.stage_worker_for(schedulers[0], B)
    table.remove(schedulers[0])
    table.remove(workers[0])
    assert table.stage_worker_for(schedulers[1], A) == "second"
    copy = table.add_scheduler(Args(), "same")
    with pytest.raises(OwnWorkerUnknownError):  # it has a scheduler
        table.stage_worker_for(copy, A)
    table.publish(table.add_worker(Args(), "same"), A, lambda: 1, stage_worker="third")
    assert table.stage_worker_for(copy, A) is None  # and never will be


def test_a_changed_setting_makes_another_instance() -> None:
    table = Rendezvous()
    args = Args()
    table.publish(table.add_worker(args, "epoch 1"), A, lambda: 1)
    scheduler = table.add_scheduler(args, "epoch 2")
    assert table.keyspace_for(scheduler) is None


def test_entries_go_with_their_worker() -> None:
    table = Rendezvous()
    args = Args()
    gone = weakref.ref(args)
    worker = table.add_worker(args, "same")
    scheduler = table.add_scheduler(args, "same")
    table.publish(worker, A, lambda: 1)
    table.remove(worker)
    table.remove(worker)
    assert table.keyspace_for(scheduler) is None
    table.remove(scheduler)
    del args, worker, scheduler
    gc.collect()
    assert gone() is None


def test_the_table_is_bounded() -> None:
    table = Rendezvous()
    args = Args()
    for _ in range(3000):
        table.add_worker(args, "x")
        table.add_scheduler(args, "x")
    last = table.add_worker(args, "y")
    table.publish(last, A, lambda: 1)
    assert table.keyspace_for(table.add_scheduler(args, "y")) == A
    assert len(table._workers) == len(table._schedulers) == 1024


def test_the_slowest_worker_bounds_what_is_promised() -> None:
    table = Rendezvous()
    args = Args()
    scheduler = table.add_scheduler(args, "same")
    assert table.load_budget_for(scheduler) is None
    table.publish(table.add_worker(args, "same"), A, lambda: 7)
    table.publish(table.add_worker(args, "same"), A, lambda: 3)
    table.publish(table.add_worker(Args(), "same"), A, lambda: 1)
    assert table.load_budget_for(scheduler) == 3
