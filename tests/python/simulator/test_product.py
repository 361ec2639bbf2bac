"""The product's own classes under the simulator: every byte and invariant, at every step."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulator.conftest import BASE, MakeProduct
from simulator.scenarios import play, settings_of
from support.waiting import wait_until

from mooncake_trtllm.simulator import DTYPES, Media, Prompt

LONG = list(range(3000, 3100))
IMAGE = Media(bytes(range(32)), 20, 30)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("max_num_tokens", [24, 4096])
def test_another_instance_reuses_every_whole_block(
    tp: int, overlap: bool, max_num_tokens: int, make_product: MakeProduct
) -> None:
    settings = {"tp": tp, "overlap": overlap, "max_num_tokens": max_num_tokens}
    with make_product(**settings) as ctx:
        cold = ctx.serve(Prompt(LONG, max_new_tokens=5), drain_s=10.0)
        with make_product(**settings) as gen:
            warm = gen.serve(Prompt(LONG, max_new_tokens=5), drain_s=10.0)
    assert (cold.blocks_hit, cold.blocks_matchable) == (0, 12)
    assert (warm.blocks_hit, warm.blocks_verified) == (12, 12)
    assert warm.new_tokens == cold.new_tokens


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_dtype_moves_bit_exactly(dtype: str, make_product: MakeProduct) -> None:
    with make_product(replace(BASE, dtype=dtype)) as instance:
        instance.serve(Prompt(LONG), drain_s=10.0)
        assert instance.serve(Prompt(LONG), drain_s=10.0).blocks_verified == 12


MUST_MISS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "other salt": ({}, {"cache_salt": "a"}),
    "empty salt": ({}, {"cache_salt": ""}),
    "adapter": ({}, {"lora_task_id": 1}),
    "media": ({}, {"media": (replace(IMAGE, start=0),)}),
    "other weights": ({"weights": 1}, {}),
    "other tokenizer": ({"tokenizer": 2}, {}),
    "other dtype": ({"geometry": replace(BASE, dtype="float16")}, {}),
    "other bytes of the same size": ({"geometry": replace(BASE, kv_heads=4, head_dim=4)}, {}),
    "fp8 of the same size": ({"geometry": replace(BASE, dtype="fp8", head_dim=16)}, {}),
    "other tokens per block": ({"geometry": replace(BASE, tokens_per_block=16)}, {}),
    "other layers": ({"geometry": replace(BASE, layers=2)}, {}),
    "other tensor-parallel size": ({"tp": 2}, {}),
}


@pytest.mark.parametrize("case", MUST_MISS)
def test_what_differs_in_identity_never_hits(case: str, make_product: MakeProduct) -> None:
    """A hit would also be wrong bytes, and the oracle would say so."""
    settings, scope = MUST_MISS[case]
    with make_product() as first, make_product(**settings) as second:
        first.serve(Prompt(LONG), drain_s=10.0)
        assert second.serve(Prompt(LONG, **scope), drain_s=10.0).blocks_hit == 0
        assert first.serve(Prompt(LONG), drain_s=10.0).blocks_hit == 12


def test_salts_of_different_types_never_meet(make_product: MakeProduct) -> None:
    salts: list[str | int | None] = ["5", 5, "", None, "05", 50]
    with make_product() as instance:
        for salt in salts:
            result = instance.serve(Prompt(LONG, cache_salt=salt), drain_s=10.0)
            assert result.blocks_hit == 0, salt
        for salt in salts:
            result = instance.serve(Prompt(LONG, cache_salt=salt), drain_s=10.0)
            assert result.blocks_verified == 12, salt


def test_text_before_an_image_reuses_and_the_image_decides_from_there(
    make_product: MakeProduct,
) -> None:
    other = replace(IMAGE, digest=bytes(31) + b"1")
    with make_product() as instance:
        instance.serve(Prompt(LONG, media=(IMAGE,)), drain_s=10.0)
        assert instance.serve(Prompt(LONG, media=(other,)), drain_s=10.0).blocks_hit == 2
        assert instance.serve(Prompt(LONG), drain_s=10.0).blocks_hit == 2
        assert instance.serve(Prompt(LONG, media=(IMAGE,)), drain_s=10.0).blocks_verified == 12


@pytest.mark.parametrize("seed", range(100, 116))
def test_a_random_run_holds_every_invariant(seed: int, make_product: MakeProduct) -> None:
    draw = random.Random(seed)
    settings = settings_of(draw)
    # The connector turns the runtime's partial reuse off where it can.
    settings["partial_reuse"] = False
    with make_product(**settings) as first:
        play(first, draw)
    with make_product(**settings) as second:
        ended = play(second, draw)
    assert sum(result.blocks_verified for result in ended) > 0


def test_an_unaligned_local_match_is_left_alone(make_product: MakeProduct) -> None:
    with make_product(block_reuse=True, partial_reuse=True) as instance:
        instance.serve(Prompt(LONG), drain_s=10.0)
        result = instance.serve(Prompt([*LONG[:45], *range(60)]), drain_s=10.0)
    assert (result.local_tokens, result.blocks_hit) == (45, 0)


def test_requests_whose_content_is_unknown_bypass_the_store(make_product: MakeProduct) -> None:
    unknown = {"prompt_embedding_table": b"\0"}
    with make_product() as instance:
        for _ in range(2):
            result = instance.serve(Prompt(LONG, attributes=unknown), drain_s=10.0)
            assert result.blocks_hit == 0
        [stats] = instance.stats()
    assert stats["worker"]["blocks_saved"] == 0
    assert stats["scheduler"]["queries_bypassed"] == 2


def test_threads_go_with_the_instance(make_product: MakeProduct) -> None:
    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    with make_product(tp=2) as warm_up:
        warm_up.serve(Prompt(LONG), drain_s=10.0)
    before = threads()
    for _ in range(3):
        with make_product(tp=2) as instance:
            instance.serve(Prompt(LONG), drain_s=10.0)
            assert threads() > before
    # The kernel may show a thread for a moment after it was joined.
    assert wait_until(lambda: threads() <= before)
