"""Long mixed runs by seed: every combination of behaviours holds every invariant."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from simulator.scenarios import play, settings_of

from mooncake_trtllm.simulator import Instance

MakeInstance = Callable[..., Instance]


@pytest.mark.parametrize("seed", range(16))
def test_a_random_run_holds_every_invariant(seed: int, make_instance: MakeInstance) -> None:
    draw = random.Random(seed)
    kind = draw.choice(("", "", "Async", "Pinning"))
    settings = settings_of(draw)
    if kind == "Async":
        # The runtime frees pages of a parked request that is cancelled without waiting; a
        # connector that writes later would be at fault. This one writes at once.
        settings["tp"] = 1
    with make_instance(f"{kind}Scheduler", f"{kind}Worker", **settings) as first:
        play(first, draw)
    with make_instance(f"{kind}Scheduler", f"{kind}Worker", **settings) as second:
        ended = play(second, draw)
    # The run is worth something: it reused blocks, let requests end and cancelled others.
    assert sum(result.blocks_verified for result in ended) > 0
    assert {result.state for result in ended} == {"finished", "cancelled"}
