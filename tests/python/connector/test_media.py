"""B04 to B06 through the classes: images decide from the first block that they touch."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.engine import Engine, Request

from mooncake_trtllm import _native

MakeEngine = Callable[..., Engine]
BLOCK = 8
TEXT = [int(t) for t in np.random.default_rng(3).integers(0, 32000, 64)]
PLACEHOLDER = 32001
ONE = [11, -12, 13, -14, 15, -16, 17, -18]
TWO = [11, -12, 13, -14, 15, -16, 17, 99]
_ids = itertools.count(1)


def prompt(start: int, length: int, text: list[int] = TEXT) -> list[int]:
    """Text, placeholders at [start, start + length), text; 61 tokens."""
    tokens = [*text[:start], *[PLACEHOLDER] * length, *text[start:]]
    return tokens[:61]


def request(start: int, length: int, words: list[int], **changes: Any) -> Request:
    extra = {
        "multimodal_hashes": [words],
        "multimodal_positions": [start],
        "multimodal_lengths": [length],
        **changes,
    }
    return Request(next(_ids), prompt(start, length), extra, seen_from(start, f"{words} {start}"))


def seen_from(start: int, identity: str) -> Callable[[int], str]:
    """An identity that only blocks from the one with position `start` on have."""
    return lambda block: identity if (block + 1) * BLOCK > start else ""


# Smaller than, equal to and larger than a block; inside, at an edge, straddling one or more.
SPANS = [(17, 3), (16, 8), (14, 4), (15, 2), (20, 24), (24, 16), (0, 8), (0, 1)]


@pytest.mark.parametrize(("start", "length"), SPANS)
def test_b04_another_image_never_hits(start: int, length: int, make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.serve(request(start, length, ONE))
    untouched = start // BLOCK
    assert engine.lookup(request(start, length, TWO)) == untouched
    assert engine.lookup(request(start, length, ONE)) == 60 // BLOCK
    assert engine.serve(request(start, length, ONE)) == 60 // BLOCK


def test_text_before_an_image_reuses_plain_text(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.serve(Request(next(_ids), TEXT[:33]))
    assert engine.lookup(request(20, 10, ONE)) == 2


def test_placeholders_alone_never_hit_an_image(make_engine: MakeEngine) -> None:
    """The same tokens without any media are another content."""
    engine = make_engine()
    engine.serve(request(16, 16, ONE))
    assert engine.lookup(Request(next(_ids), prompt(16, 16))) == 2
    engine.serve(Request(next(_ids), prompt(16, 16)))
    assert engine.lookup(request(16, 16, TWO)) == 2


def test_the_same_image_elsewhere_misses(make_engine: MakeEngine) -> None:
    engine = make_engine()
    tokens = [PLACEHOLDER] * 61
    for start in (8, 9):
        extra = {
            "multimodal_hashes": [ONE],
            "multimodal_positions": [start],
            "multimodal_lengths": [20],
        }
        one = Request(next(_ids), tokens, extra, seen_from(start, str(start)))
        assert engine.serve(one) == (0 if start == 8 else 1)


@pytest.mark.parametrize("equal_bits", [16, 32, 64, 255])
@pytest.mark.parametrize("end", ["low", "high"])
def test_b05_no_part_of_a_digest_is_left_out(
    equal_bits: int, end: str, make_engine: MakeEngine
) -> None:
    """B05: digests that agree in their low, or in their high, bits."""
    engine = make_engine()
    engine.serve(request(16, 8, ONE))
    number = int.from_bytes(struct.pack(">8i", *ONE), "big")
    number ^= 1 << (equal_bits if end == "low" else 255 - equal_bits)
    other = list(struct.unpack(">8i", number.to_bytes(32, "big")))
    assert engine.lookup(request(16, 8, other)) == 2
    assert engine.lookup(request(16, 8, ONE)) == 60 // BLOCK


def test_b05_many_digests_never_collide() -> None:
    rng = np.random.default_rng(5)
    names = set()
    for digest in rng.integers(0, 256, (100_000, 32), np.uint8):
        chain = _native.BlockChain(8, media=[(digest.tobytes(), 2, 3)])
        chain.append(TEXT[:8])
        names.update(chain.blocks())
    assert len(names) == 100_000


MALFORMED: list[dict[str, Any]] = [
    {"multimodal_hashes": None},
    {"multimodal_hashes": []},
    {"multimodal_hashes": [ONE, TWO]},
    {"multimodal_hashes": [ONE[:4]]},
    {"multimodal_positions": None},
    {"multimodal_positions": []},
    {"multimodal_lengths": None},
    {"multimodal_lengths": [0]},
    {"multimodal_lengths": [1000]},
    {"multimodal_positions": [-3]},
    {
        "multimodal_hashes": None,
        "multimodal_positions": None,
        "multimodal_lengths": None,
        "multimodal_embedding": object(),
    },
    {"prompt_embedding_table": object()},
]


@pytest.mark.parametrize("changes", MALFORMED, ids="-".join)
def test_b06_malformed_media_is_not_cached_at_all(
    changes: dict[str, Any], make_engine: MakeEngine
) -> None:
    """B06: it never falls back to the names of plain text, in neither direction."""
    engine = make_engine()
    engine.serve(Request(next(_ids), prompt(16, 8)))  # plain text of the same tokens
    engine.serve(request(16, 8, ONE))
    stored = engine.worker.stats()["blocks_saved"]
    bad = request(16, 8, ONE, **changes)
    assert engine.lookup(bad) == 0
    assert engine.serve(bad) == 0
    assert engine.worker.stats()["blocks_saved"] == stored
