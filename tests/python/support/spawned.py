"""What test programs in processes of their own use; a spawned one must import it by name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.engine import Engine, Request, Shape
from support.stores import memory_of

__all__ = ["TOKENS", "Request", "engine_of", "keys", "memory_of"]

TOKENS: list[int] = json.loads(os.environ["TEST_TOKENS"])


def engine_of(tp: int = 1) -> Engine:
    """An engine for the model that the environment names."""
    with pytest.MonkeyPatch.context() as patch:
        return Engine(Shape(), Path(os.environ["TEST_MODEL"]), patch, tp=tp)


def keys() -> dict[str, Any]:
    """Names that a scheduler plans and keys that workers store, for one salted request."""
    from mooncake_trtllm import _native

    engine = engine_of(tp=2)
    request = Request(1, TOKENS, {"cache_salt": "tenant"})
    matched, pages = engine.start(request)
    planned = _native.decode_step_plan(engine.plan(request, matched, pages)).saves
    engine.scheduler.request_finished(request.bound(), pages)
    engine.serve(Request(2, TOKENS, {"cache_salt": "tenant"}))
    result = {"stored": memory_of(engine).keys(), "planned": [task[1].hex() for task in planned]}
    engine.close()
    return result
