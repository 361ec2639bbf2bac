"""What all Python tests share: a clean environment, and the modules of support/ by name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

_HERE = str(Path(__file__).parent)
if _HERE not in sys.path:
    sys.path.insert(0, _HERE)

if TYPE_CHECKING:
    from support.engine import Engine

_LAUNCHERS = ("OMPI_COMM_WORLD_", "PMI_", "PMIX_", "SLURM_", "MC_", "MOONCAKE_", "HF_")


@pytest.fixture(name="environment")
def environment_fixture(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment without any setting that a developer or a launcher may have left there."""
    for name in [name for name in os.environ if name.startswith(_LAUNCHERS)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MC_BACKEND", "memory")
    monkeypatch.setenv("MC_STAGING_BYTES", "1MB")
    return monkeypatch


@pytest.fixture(name="leased")
def leased_fixture(environment: pytest.MonkeyPatch) -> None:
    """Blocks are fetched after they were promised: loads need the store, and can fail."""
    environment.setenv("MC_PROMISE", "leased")


MakeEngine = Callable[..., "Engine"]


@pytest.fixture(name="make_engine")
def make_engine_fixture(
    environment: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[MakeEngine]:
    """Starts engines that share one empty memory store; closes those that a test leaves open."""
    from support.engine import Engine, Shape, make_model

    environment.setenv("MC_MEMORY_BYTES", str(_own_capacity(request.node.nodeid)))
    running: list[Engine] = []

    def make(shape: Shape | None = None, *, model: Path | None = None, **options: Any) -> Engine:
        shape = shape or Shape()
        if model is None:
            model = tmp_path / f"model-{shape.layers}-{shape.heads}-{shape.dtype}"
            if not model.is_dir():
                make_model(model, shape)
        engine = Engine(shape, model, environment, **options)
        running.append(engine)
        return engine

    yield make
    for engine in running:
        engine.close()


_capacities: dict[str, int] = {}


def _own_capacity(test: str) -> int:
    """A capacity that no other test uses: stores of one process are shared by configuration."""
    return _capacities.setdefault(test, (64 << 20) + len(_capacities))
