"""Layer by layer through the classes: where errors come out, and when blocks stay whole."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engine import POISON, Engine, Request, Shape, make_model
from support.gates import Gate, gate_stores
from support.stores import memory_of

from mooncake_trtllm import KvConnectorLoadError

MakeEngine = Callable[..., Engine]
TOKENS = [int(t) for t in np.random.default_rng(11).integers(0, 32000, 61)]
FULL = 60 // 8
_ids = itertools.count(1)


@pytest.fixture(name="by_layer", autouse=True)
def by_layer_fixture(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("MC_LAYER_GRANULARITY", "1")


@pytest.fixture(name="gate")
def gate_fixture(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """The store of all engines of the test stands behind this gate."""
    gates = gate_stores(monkeypatch)
    keeper = make_engine()  # opens the store
    yield gates[0]
    gates[0].open_gate()
    keeper.close()


def request() -> Request:
    return Request(next(_ids), list(TOKENS))


def layer_keys(engine: Engine, layer: int) -> list[str]:
    return [key for key in memory_of(engine).keys() if key.endswith(f"/r0/{layer}")]  # noqa: SIM118


def begin(engine: Engine) -> tuple[Request, int, list[int]]:
    """Query, allocation, metadata and start_load_kv of a request whose blocks are stored."""
    one = request()
    matched, pages = engine.start(one)
    engine.worker.bind_connector_meta(engine.plan(one, matched, pages))
    engine.worker.start_load_kv(None)
    return one, matched, pages


def begin_held_up(engine: Engine, gate: Gate) -> tuple[Request, int, list[int]]:
    """As begin(), and the first get of the load waits at the gate."""
    one = request()
    matched, pages = engine.start(one)
    meta = engine.plan(one, matched, pages)
    gate.close_gate()
    engine.worker.bind_connector_meta(meta)
    engine.worker.start_load_kv(None)
    gate.wait_for_waiting(1)
    return one, matched, pages


def test_objects_and_counters(make_engine: MakeEngine) -> None:
    engine = make_engine()
    assert engine.serve(request()) == 0
    layers = engine.shape.layers
    assert len(memory_of(engine).keys()) == FULL * (layers + 2)
    for layer in range(layers):
        assert len(layer_keys(engine, layer)) == FULL
    for _ in range(3):
        assert engine.serve(request()) == FULL
    stats = engine.worker.stats()
    assert stats["layers_stored_apart"] == layers
    assert stats["blocks_saved"] == stats["blocks_committed"] == FULL
    assert stats["blocks_loaded"] == 3 * FULL


def test_a_missing_layer_raises_at_its_wait(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.serve(request())
    engine.serve(request())  # a pass with loads and all hooks
    one = request()
    matched, pages = engine.start(one)
    meta = engine.plan(one, matched, pages)
    [key, *_] = layer_keys(engine, 1)
    memory_of(engine).remove([key])
    worker = engine.worker
    worker.bind_connector_meta(meta)
    worker.start_load_kv(None)
    worker.wait_for_layer_load(0, None)
    for layer in (1, 2, 1):
        with pytest.raises(KvConnectorLoadError) as caught:
            worker.wait_for_layer_load(layer, None)
        assert key in str(caught.value)
        assert "Remedy" in str(caught.value)
        assert caught.value.request_ids == [one.request_id]
    worker.wait_for_save(None)
    engine.scheduler.request_finished(one.bound(), pages)
    # The retry recomputes from the block on, and heals it.
    assert engine.serve(request()) < FULL
    assert engine.serve(request()) == FULL


def test_a_pass_that_did_not_wait_raises_at_its_end(make_engine: MakeEngine, gate: Gate) -> None:
    engine = make_engine()
    engine.serve(request())
    engine.serve(request())
    one, _, pages = begin_held_up(engine, gate)
    with pytest.raises(KvConnectorLoadError, match="did not wait for layer 0"):
        engine.worker.wait_for_save(None)
    gate.open_gate()
    engine.scheduler.request_finished(one.bound(), pages)
    # Without trust everything is there before the pass.
    one, matched, pages = begin(engine)
    engine.verify(one, pages[:matched])
    engine.worker.wait_for_save(None)


def test_the_turn_of_a_pass_that_broke_off_ends_its_loads(
    make_engine: MakeEngine, gate: Gate
) -> None:
    engine = make_engine()
    engine.serve(request())
    engine.serve(request())
    one, _, pages = begin_held_up(engine, gate)
    # The forward pass fails for reasons of its own; then its requests and their pages go.
    assert engine.worker.get_finished([], []) == ([], [])
    gate.open_gate()
    with pytest.raises(KvConnectorLoadError):
        engine.worker.wait_for_layer_load(0, None)
    assert (engine.pools[0].bytes[pages] == POISON).all()
    engine.scheduler.request_finished(one.bound(), pages)
    assert engine.serve(request()) == FULL


@pytest.mark.parametrize("waits", [True, False])
def test_a_worker_that_is_closed_under_a_pass_fails_it(
    make_engine: MakeEngine, gate: Gate, *, waits: bool
) -> None:
    engine = make_engine()
    engine.serve(request())
    engine.serve(request())
    one, _, _ = begin_held_up(engine, gate)
    engine.worker.close()
    if waits:
        with pytest.raises(KvConnectorLoadError, match="closed") as caught:
            engine.worker.wait_for_layer_load(0, None)
        assert caught.value.request_ids == [one.request_id]
    with pytest.raises(KvConnectorLoadError, match="closed") as caught:
        engine.worker.wait_for_save(None)
    assert caught.value.request_ids == [one.request_id]
    engine.worker.wait_for_save(None)  # once
    engine.worker.bind_connector_meta((None, ()))
    engine.worker.wait_for_layer_load(0, None)


def test_a_worker_that_is_closed_after_a_pass_is_quiet(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.serve(request())
    engine.serve(request())
    engine.worker.close()
    engine.worker.wait_for_layer_load(0, None)
    engine.worker.wait_for_save(None)


class _Broken:
    """A core whose save() fails, and that is otherwise the one that it stands in for."""

    def __init__(self, core: Any) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def save(self, stream: int) -> None:
        raise RuntimeError(f"no memory, stream {stream}")


def test_an_end_of_a_pass_that_breaks_fails_the_pass_if_it_has_loads(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    engine.serve(request())
    engine.serve(request())
    one, _, pages = begin(engine)
    resources = engine.worker._resources
    monkeypatch.setattr(resources, "core", _Broken(resources.core))
    with pytest.raises(KvConnectorLoadError, match="no memory"):
        engine.worker.wait_for_save(None)
    engine.scheduler.request_finished(one.bound(), pages)
    # Without loads a save is lost, no more.
    engine.worker.bind_connector_meta((None, ()))
    engine.worker.start_load_kv(None)
    engine.worker.wait_for_save(None)


@pytest.mark.parametrize("layer", [-1, 3, 1 << 40, None, "0"])
def test_layers_that_make_no_sense_are_harmless(make_engine: MakeEngine, layer: Any) -> None:
    engine = make_engine()
    engine.serve(request())
    engine.worker.wait_for_layer_load(layer, None)
    engine.worker.save_kv_layer(layer, None)
    assert engine.serve(request()) == FULL


def test_unknown_layers_mean_whole_blocks_and_one_warning(
    make_engine: MakeEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model(tmp_path / "silent", Shape(), num_hidden_layers=None)
    with caplog.at_level(logging.WARNING):
        engines = [make_engine(model=model, tp=2) for _ in range(2)]
    told = [r for r in caplog.records if "MC_LAYER_GRANULARITY" in r.getMessage()]
    assert len(told) == 1
    assert "num_hidden_layers" in told[0].getMessage()
    assert "Remedy" in told[0].getMessage()
    assert engines[0].serve(request()) == 0
    assert engines[1].serve(request()) == FULL
    assert engines[1].worker.stats()["layers_stored_apart"] == 0
    assert layer_keys(engines[0], 0) == []


def test_known_layers_are_not_warned_about(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        make_engine()
    assert not [r for r in caplog.records if "MC_LAYER_GRANULARITY" in r.getMessage()]
