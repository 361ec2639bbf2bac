from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mooncake_trtllm.simulator import (
    ConnectorNames,
    Geometry,
    Instance,
    InstanceConfig,
    ModelFolder,
)

SMALL = Geometry(layers=3, kv_heads=2, head_dim=8, tokens_per_block=8)

BASE = Geometry(layers=3, kv_heads=2, head_dim=8, tokens_per_block=8)

MakeInstance = Callable[..., Instance]
MakeProduct = Callable[..., Instance]
_weights = itertools.count(1000)


@pytest.fixture(name="reference")
def reference_fixture(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of reference connectors, its store empty."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    module = importlib.import_module("simulator.connectors.reference_connector")
    module.STORE.objects.clear()
    module.STORE.delay_s = 0.0
    module.EVENTS.clear()
    yield module
    module.STORE.objects.clear()


@pytest.fixture(name="make_instance")
def make_instance_fixture(reference: Any, tmp_path: Path) -> Iterator[MakeInstance]:
    """Starts instances over reference connectors; what a test leaves open is killed."""
    running: list[Instance] = []

    def make(
        scheduler: str = "Scheduler",
        worker: str = "Worker",
        *,
        geometry: Geometry = SMALL,
        weights_seed: int = 1,
        **settings: Any,
    ) -> Instance:
        model = ModelFolder.create(
            tmp_path / f"model-{weights_seed}-{geometry.dtype}-{geometry.layers}",
            geometry,
            weights_seed=weights_seed,
        )
        sound = hasattr(reference, scheduler) and hasattr(reference, worker)
        module = reference.__name__ if sound else "simulator.connectors.broken_connectors"
        names = ConnectorNames(module, scheduler, worker)
        defaults: dict[str, Any] = {"pool_blocks": 48, "hang_timeout_s": 20.0}
        config = InstanceConfig(model, geometry, connector=names, **{**defaults, **settings})
        instance = Instance(config).start()
        running.append(instance)
        return instance

    yield make
    for instance in running:
        instance.kill()


@pytest.fixture(name="make_product")
def make_product_fixture(environment: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[MakeProduct]:
    """Starts instances of the product over the memory store, on a model of this test alone."""
    environment.setenv("MC_BACKEND", "memory")
    base_seed = next(_weights) * 1000
    folders = itertools.count()
    running: list[Instance] = []

    def make(
        geometry: Geometry = BASE, *, weights: int = 0, tokenizer: int = 1, **settings: Any
    ) -> Instance:
        model = ModelFolder.create(
            tmp_path / str(next(folders)),
            geometry,
            weights_seed=base_seed + weights,
            tokenizer_seed=tokenizer,
        )
        defaults: dict[str, Any] = {"pool_blocks": 48, "block_reuse": False}
        instance = Instance(InstanceConfig(model, geometry, **{**defaults, **settings})).start()
        running.append(instance)
        return instance

    yield make
    for instance in running:
        instance.kill()
