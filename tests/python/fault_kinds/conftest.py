"""All of these tests run twice, with each kind of promise; where they differ, a test says so."""

from __future__ import annotations

import pytest


@pytest.fixture(name="promise", params=["leased", "staged"], autouse=True)
def promise_fixture(request: pytest.FixtureRequest, environment: pytest.MonkeyPatch) -> str:
    """`leased` or `staged`."""
    promise: str = request.param
    environment.setenv("MC_PROMISE", promise)
    return promise
