"""B94: every method of every runtime version is there, on the class, with a signature that fits."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
from support.engine import Shape, make_model
from support.processes import clean_environment, run_python
from support.stand_in import Scheduler14, Worker14

from mooncake_trtllm import MooncakeKvCacheConnectorScheduler, MooncakeKvCacheConnectorWorker
from mooncake_trtllm.shim import surface_problems

WORKER = (
    "bind_connector_meta",
    "get_connector_meta",
    "register_forward_pass_callable",
    "register_kv_caches",
    "register_kv_cache_layout",
    "start_load_kv",
    "wait_for_layer_load",
    "save_kv_layer",
    "wait_for_save",
    "get_finished",
)
SCHEDULER = (
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "update_state_after_alloc_by_layer_group",
    "build_connector_meta",
    "request_finished",
    "request_finished_by_layer_group",
    "request_reset",
    "cancel_load",
    "wait_for_initialization",
)
# A partial set of these is rejected by the runtime, and attention DP must not be claimed.
NEVER = (
    "reserve_prefix",
    "release_prefix_reservation",
    "get_finished_prefix_loads",
    "supports_attention_dp",
)
BOTH = (MooncakeKvCacheConnectorScheduler, MooncakeKvCacheConnectorWorker)


def test_b94_methods_are_defined_by_the_classes() -> None:
    for cls, names in zip(BOTH, (SCHEDULER, WORKER), strict=True):
        for name in names:
            assert inspect.isfunction(inspect.getattr_static(cls, name)), name
        assert not getattr(cls, "__abstractmethods__", None)


def test_what_must_not_be_there_is_not() -> None:
    for cls in BOTH:
        assert [name for name in NEVER if hasattr(cls, name)] == []


def test_one_positional_argument_constructs() -> None:
    for cls in BOTH:
        inspect.signature(cls).bind(object())
        inspect.signature(cls).bind(object(), object(), later=1)


def test_the_newest_known_version_is_covered() -> None:
    assert surface_problems(MooncakeKvCacheConnectorWorker, Worker14) == []
    assert surface_problems(MooncakeKvCacheConnectorScheduler, Scheduler14) == []


RUN = """
import json, logging, pickle, sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from support import stand_in
from support.engine import HostTensor, Shape, llm_args

logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
bases = stand_in.install(sys.argv[1])

import importlib
from mooncake_trtllm import make_kv_connector_config

config = make_kv_connector_config()
assert type(config) is stand_in.ConnectorConfig
module = importlib.import_module(config.connector_module)
worker_class = getattr(module, config.connector_worker_class)
scheduler_class = getattr(module, config.connector_scheduler_class)
assert issubclass(worker_class, bases[0]) and issubclass(scheduler_class, bases[1])

shape = Shape()
args = llm_args(sys.argv[2], shape)
with ThreadPoolExecutor(max_workers=2) as pool:
    worker, scheduler = [f.result() for f in
                         (pool.submit(worker_class, args), pool.submit(scheduler_class, args))]
assert isinstance(worker, bases[0]) and worker.get_connector_meta() is None
assert not worker.register_forward_pass_callable()
tensor = HostTensor(shape.pool(1), shape.dtype)
worker.register_kv_caches(tensor)
scheduler.wait_for_initialization()
tokens = list(range(30))
def step(number):
    request = SimpleNamespace(request_id=number, prompt_len=30, get_tokens=lambda beam: tokens)
    matched, is_async = scheduler.get_num_new_matched_tokens(request, 0)
    scheduler.update_state_after_alloc(request, [0, 1, 2, 3])
    data = SimpleNamespace(request_id=number, new_tokens=tokens, new_block_ids=[0, 1, 2, 3],
                           computed_position=0, num_scheduled_tokens=30 - matched)
    meta = scheduler.build_connector_meta(SimpleNamespace(new_requests=[data], cached_requests=[]))
    meta = pickle.loads(pickle.dumps(meta))
    worker.bind_connector_meta(meta)
    assert worker.get_connector_meta() == meta
    worker.start_load_kv(None)
    worker.wait_for_save(None)
    assert not scheduler.request_finished(request, [0, 1, 2, 3])
    assert worker.drain(20)
    return matched
print(json.dumps([step(1), step(2)]))
"""


@pytest.mark.parametrize("family", ["1.1", "1.3", "1.4"])
def test_under_a_runtime(family: str, tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", Shape())
    done = run_python(RUN, family, str(model), environment=clean_environment())
    assert json.loads(done.stdout) == [0, 24]
    assert "does without" not in done.stderr


def test_a_newer_runtime_is_served_and_told_about(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", Shape())
    done = run_python(RUN, "future", str(model), environment=clean_environment())
    assert json.loads(done.stdout) == [0, 24]
    assert "on_preemption is new in this runtime" in done.stderr
    assert "WorkerFuture.start_load_kv takes 2 arguments" in done.stderr


def test_versions_of_the_runtime_do_not_share_blocks(tmp_path: Path) -> None:
    """The layout of a pool is the runtime's business, so its version is part of the identity."""
    model = make_model(tmp_path / "model", Shape())
    code = RUN.replace("print(json", "print(scheduler._instance.identity.engine_layout, json")
    layouts = {
        family: run_python(code, family, str(model)).stdout.split()[0:2]
        for family in ("1.1", "1.3")
    }
    assert layouts["1.1"] != layouts["1.3"]
