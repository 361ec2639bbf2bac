"""The oracle: every input decides the bytes, and nothing else does."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from mooncake_trtllm.simulator import Geometry, Media, Prompt
from mooncake_trtllm.simulator.oracle import Oracle
from mooncake_trtllm.simulator.pool import Pool

GEOMETRY = Geometry(layers=3, kv_heads=2, head_dim=5, tokens_per_block=8, dtype="float16")
MODEL = ("model", 1, 1, "float16")
TOKENS = list(range(100, 140))
IMAGE = Media(bytes(range(32)), 10, 6)


def page_bytes(
    prompt: Prompt,
    *,
    geometry: Geometry = GEOMETRY,
    tp: int = 1,
    rank: int = 0,
    model: tuple[object, ...] = MODEL,
    lora: object = None,
) -> bytes:
    """All bytes of a prompt, as they lie in the pages."""
    pool = Pool(geometry, tp, 8)
    oracle = Oracle(geometry, tp, rank, model)
    prefix = oracle.prefix(prompt, lora)
    blocks = [5, 2, 7, 0, 3]
    for layer in range(geometry.layers):
        oracle.write(pool, blocks, prefix, layer, 0, prefix.length)
    return pool.pages[blocks].tobytes()


def test_same_inputs_give_the_same_bytes() -> None:
    assert page_bytes(Prompt(TOKENS)) == page_bytes(Prompt(np.array(TOKENS)))


def test_the_bytes_never_change_between_versions() -> None:
    data = page_bytes(Prompt(TOKENS, media=(IMAGE,), cache_salt="s"))
    digest = hashlib.sha256(data).hexdigest()
    assert digest == "3a822376d2601a236845abd10a8ebd6838167a299a167ea55f36a47c90f20d0e"


@pytest.mark.parametrize(
    "other",
    [
        {"prompt": Prompt([101, *TOKENS[1:]])},
        {"prompt": Prompt([TOKENS[1], TOKENS[0], *TOKENS[2:]])},
        {"prompt": Prompt(TOKENS, cache_salt="")},
        {"prompt": Prompt(TOKENS, cache_salt="5")},
        {"prompt": Prompt(TOKENS, cache_salt=5)},
        {"prompt": Prompt(TOKENS, media=(IMAGE,))},
        {"prompt": Prompt(TOKENS, media=(replace(IMAGE, start=11),))},
        {"prompt": Prompt(TOKENS, media=(replace(IMAGE, digest=bytes(32)),))},
        {"prompt": Prompt(TOKENS), "lora": "adapter"},
        {"prompt": Prompt(TOKENS), "rank": 1},
        {"prompt": Prompt(TOKENS), "model": ("model", 2, 1, "float16")},
        {"prompt": Prompt(TOKENS), "model": ("model", 1, 2, "float16")},
        {"prompt": Prompt(TOKENS), "geometry": replace(GEOMETRY, dtype="bfloat16")},
        {"prompt": Prompt(TOKENS), "geometry": replace(GEOMETRY, kv_heads=1, head_dim=10)},
    ],
    ids=[
        *("first-token", "order", "empty-salt", "text-salt", "number-salt", "media"),
        *("media-moved", "media-digest", "lora", "rank", "weights", "tokenizer", "dtype", "heads"),
    ],
)
def test_any_other_input_gives_other_bytes(other: dict[str, object]) -> None:
    base = page_bytes(Prompt(TOKENS))
    changed = page_bytes(**other)  # type: ignore[arg-type]
    assert base != changed
    # The last position sees every difference, so no tail of the bytes is shared either.
    assert base[-10:] != changed[-10:]


def test_positions_before_the_difference_are_shared() -> None:
    block = GEOMETRY.page_bytes(1)
    base = page_bytes(Prompt(TOKENS))
    other = page_bytes(Prompt([*TOKENS[:16], 1, *TOKENS[17:]]))
    assert base[: 2 * block] == other[: 2 * block]
    assert base[2 * block :] != other[2 * block :]
    image = page_bytes(Prompt(TOKENS, media=(IMAGE,)))
    assert base[:block] == image[:block]


def test_no_two_positions_layers_or_halves_are_alike() -> None:
    pool = Pool(GEOMETRY, 1, 8)
    oracle = Oracle(GEOMETRY, 1, 0, MODEL)
    prefix = oracle.prefix(Prompt([7] * 64), None)
    for layer in range(GEOMETRY.layers):
        oracle.write(pool, list(range(8)), prefix, layer, 0, 64)
    rows = pool.tokens.reshape(-1, GEOMETRY.token_bytes(1))
    assert len({row.tobytes() for row in rows}) == 64 * GEOMETRY.layers * GEOMETRY.kv_factor


@pytest.mark.parametrize("cut", [1, 7, 8, 9, 24, 39])
def test_growing_a_sequence_equals_starting_with_it(cut: int) -> None:
    oracle = Oracle(GEOMETRY, 1, 0, MODEL)
    whole = oracle.prefix(Prompt(TOKENS, media=(IMAGE,)), None)
    grown = oracle.prefix(Prompt(TOKENS[:cut], media=(IMAGE,)), None)
    for token in TOKENS[cut:]:
        oracle.extend(grown, [token])
    assert grown.length == whole.length
    assert np.array_equal(grown.words, whole.words)


@pytest.mark.parametrize("start", [0, 3, 8, 15])
@pytest.mark.parametrize("stop", [16, 17, 24, 39])
def test_written_pieces_verify_and_a_flipped_bit_shows(start: int, stop: int) -> None:
    pool = Pool(GEOMETRY, 1, 8)
    oracle = Oracle(GEOMETRY, 1, 0, MODEL)
    prefix = oracle.prefix(Prompt(TOKENS), None)
    blocks = [5, 2, 7, 0, 3]
    assert oracle.first_wrong(pool, blocks, prefix, 1, start, stop) == start
    oracle.write(pool, blocks, prefix, 1, start, stop)
    assert oracle.first_wrong(pool, blocks, prefix, 1, start, stop) is None
    position = stop - 1
    pool.tokens[blocks[position // 8], 1, 1, position % 8, 9] ^= 0x80
    assert oracle.first_wrong(pool, blocks, prefix, 1, start, stop) == position


def test_a_foreign_write_to_a_poisoned_page_or_beside_the_pool_shows() -> None:
    pool = Pool(GEOMETRY, 1, 4)
    everything = np.ones(4, dtype=np.bool_)
    assert pool.touched(everything) == []
    assert pool.guards_intact()
    pool.pages[2, -1] ^= 1
    assert pool.touched(everything) == [2]
    pool.poison([2])
    assert pool.touched(everything) == []
    pool._after[0] ^= 1
    assert not pool.guards_intact()
