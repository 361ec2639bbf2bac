"""Where rank and world size come from, in order, and what does not fit."""

from __future__ import annotations

import sys
import threading
import types

import pytest

from mooncake_trtllm import KvConnectorConfigError
from mooncake_trtllm.rank import resolve_rank


@pytest.fixture(autouse=True)
def nothing_set(environment: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return environment


def install_utils(monkeypatch: pytest.MonkeyPatch, **functions: object) -> None:
    package, utils = types.ModuleType("tensorrt_llm"), types.ModuleType("tensorrt_llm._utils")
    package.__path__ = []
    for name, function in functions.items():
        setattr(utils, name, function)
    monkeypatch.setitem(sys.modules, "tensorrt_llm", package)
    monkeypatch.setitem(sys.modules, "tensorrt_llm._utils", utils)


def test_alone() -> None:
    found = resolve_rank(1)
    assert (found.rank, found.world_size) == (0, 1)


def test_settings() -> None:
    found = resolve_rank(4, 3, 4)
    assert (found.rank, found.world_size, found.source) == (3, 4, "MC_RANK and MC_WORLD_SIZE")


@pytest.mark.parametrize(
    ("rank_name", "size_name"),
    [
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("PMIX_RANK", None),
        ("SLURM_PROCID", "SLURM_NTASKS"),
    ],
)
def test_launchers(rank_name: str, size_name: str | None, environment: pytest.MonkeyPatch) -> None:
    environment.setenv(rank_name, "1")
    if size_name is not None:
        environment.setenv(size_name, "2")
    found = resolve_rank(2)
    assert (found.rank, found.world_size) == (1, 2)
    assert rank_name in found.source


def test_settings_count_before_the_launcher(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("OMPI_COMM_WORLD_RANK", "1")
    environment.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert resolve_rank(2, 0, 2).rank == 0


def test_the_runtime_counts_before_everything(environment: pytest.MonkeyPatch) -> None:
    install_utils(environment, mpi_rank=lambda: 1, mpi_world_size=lambda: 2)
    found = resolve_rank(2, 0, 2)
    assert (found.rank, found.world_size) == (1, 2)


def test_a_runtime_without_world_size(environment: pytest.MonkeyPatch) -> None:
    install_utils(environment, mpi_rank=lambda: 3)
    assert resolve_rank(4).world_size == 4


def test_a_stand_in_that_invents_classes_is_not_believed(environment: pytest.MonkeyPatch) -> None:
    install_utils(environment, mpi_rank=type("mpi_rank", (), {}))
    assert resolve_rank(1).source.startswith("the default")


def test_ranks_may_be_threads(environment: pytest.MonkeyPatch) -> None:
    own = threading.local()
    install_utils(environment, mpi_rank=lambda: own.rank, mpi_world_size=lambda: 4)
    found: dict[int, int] = {}

    def run(rank: int) -> None:
        own.rank = rank
        found[rank] = resolve_rank(4).rank

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {rank: rank for rank in range(4)}


@pytest.mark.parametrize(
    ("tp", "rank", "size", "words"),
    [
        (2, None, None, ["1 rank(s)", "tensor_parallel_size is 2", "MC_RANK", "Remedy"]),
        (2, 0, 4, ["4 rank(s)", "tensor_parallel_size is 2", "Remedy"]),
        (1, 0, 2, ["2 rank(s)", "tensor_parallel_size is 1", "Remedy"]),
        (2, 5, 2, ["rank 5", "0..1", "Remedy"]),
    ],
)
def test_what_does_not_fit(tp: int, rank: int | None, size: int | None, words: list[str]) -> None:
    with pytest.raises(KvConnectorConfigError) as caught:
        resolve_rank(tp, rank, size)
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_launcher_that_does_not_fit(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("PMI_RANK", "0")
    environment.setenv("PMI_SIZE", "3")
    with pytest.raises(KvConnectorConfigError, match="PMI_RANK and PMI_SIZE"):
        resolve_rank(2)
    environment.setenv("PMI_RANK", "zero")
    with pytest.raises(KvConnectorConfigError, match="PMI_RANK='zero' is no integer"):
        resolve_rank(2)
