"""The product's layer path under the simulator: every layer is checked when a pass comes to it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from simulator.conftest import BASE, MakeProduct
from simulator.scenarios import play, settings_of

from mooncake_trtllm.simulator import Prompt
from mooncake_trtllm.simulator.config import LAYER_HOOKS

LONG = list(range(3000, 3100))
MOST_REQUESTS = 200
STEADY = [how for how in LAYER_HOOKS if how != "unsteady"]


@pytest.fixture(name="by_layer", autouse=True)
def by_layer_fixture(environment: pytest.MonkeyPatch) -> None:
    """The setting, in the environment that all instances inherit."""
    environment.setenv("MC_LAYER_GRANULARITY", "1")


def layers_of(stats: list[dict[str, Any]]) -> set[int]:
    return {entry["worker"]["layers_stored_apart"] for entry in stats}


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("layer_hooks", STEADY)
@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_another_instance_reuses_every_whole_block(
    tp: int, layer_hooks: str, cuda_graphs: bool, make_product: MakeProduct
) -> None:
    """Whatever the hooks do: all layers are there before they are read, each block saved once."""
    settings = {"tp": tp, "layer_hooks": layer_hooks, "cuda_graphs": cuda_graphs}
    with make_product(**settings) as ctx:
        cold = ctx.serve(Prompt(LONG, max_new_tokens=5), drain_s=10.0)
        assert layers_of(ctx.stats()) == {BASE.layers}
        with make_product(**settings) as gen:
            warm = [gen.serve(Prompt(LONG, max_new_tokens=5), drain_s=10.0) for _ in range(4)]
            stats = gen.stats()
    assert (cold.blocks_hit, cold.blocks_matchable) == (0, 12)
    for result in warm:
        assert (result.blocks_hit, result.blocks_verified) == (12, 12)
        assert result.new_tokens == cold.new_tokens
        assert result.errors == []
    for entry in stats:
        assert entry["worker"]["blocks_loaded"] == 4 * 12
        assert entry["worker"]["saves_dropped"] == entry["worker"]["saves_failed"] == 0


@pytest.mark.parametrize("seed", range(200, 216))
def test_a_random_run_holds_every_invariant(seed: int, make_product: MakeProduct) -> None:
    draw = random.Random(seed)
    settings = settings_of(draw)
    settings["partial_reuse"] = False
    settings["layer_hooks"] = draw.choice(STEADY)
    with make_product(**settings) as first:
        play(first, draw)
    with make_product(**settings) as second:
        ended = play(second, draw)
    assert sum(result.blocks_verified for result in ended) > 0


@pytest.mark.parametrize("tp", [1, 2])
def test_hooks_that_stop_firing_fail_the_pass_and_never_serve_wrong_bytes(
    tp: int, make_product: MakeProduct
) -> None:
    with make_product(tp=tp) as ctx:
        ctx.serve(Prompt(LONG), drain_s=10.0)
    errors: list[str] = []
    with make_product(tp=tp, layer_hooks="unsteady") as gen:
        # A pass fails only if it began before its last layer was there, which is for the threads.
        for _ in range(MOST_REQUESTS):
            result = gen.serve(Prompt(LONG, retries=3), drain_s=10.0)
            assert result.ok
            assert result.blocks_verified == 12
            errors += result.errors
            if len(errors) >= 2:
                break
    assert errors
    assert all("did not wait for layer" in error and "Remedy" in error for error in errors)


def test_the_two_granularities_share_nothing(
    environment: pytest.MonkeyPatch, make_product: MakeProduct
) -> None:
    with make_product() as by_layer:
        by_layer.serve(Prompt(LONG), drain_s=10.0)
        environment.delenv("MC_LAYER_GRANULARITY")
        with make_product() as by_block:
            assert by_block.serve(Prompt(LONG), drain_s=10.0).blocks_hit == 0
            assert by_block.serve(Prompt(LONG), drain_s=10.0).blocks_verified == 12
            assert layers_of(by_block.stats()) == {0}
        assert by_layer.serve(Prompt(LONG), drain_s=10.0).blocks_verified == 12


def test_a_compiled_model_waits_for_all_layers_before_the_pass(make_product: MakeProduct) -> None:
    """Its graphs may leave hooks out, by the number of tokens; nothing may fail for it."""
    compiled = {"torch_compile_config": object()}
    with make_product(layer_hooks="unsteady", llm_args=compiled) as instance:
        results = [instance.serve(Prompt(LONG), drain_s=10.0) for _ in range(8)]
    assert all(result.ok and not result.errors for result in results)
    assert sum(result.blocks_verified for result in results) == 7 * 12
