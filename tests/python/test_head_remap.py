"""The head codec from Python: numpy in, numpy out, against numpy's own slicing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mooncake_trtllm import KvConnectorConfigError, KvConnectorLoadError
from mooncake_trtllm.head_remap import remap_heads

Array = NDArray[np.uint16]

LAYERS, HEADS, TOKENS, DIM = 3, 8, 4, 16
GEOMETRY: dict[str, Any] = {
    "layers": LAYERS,
    "kv_heads": HEADS,
    "tokens_per_block": TOKENS,
    "head_dim": DIM,
    "element_bits": 16,
}


def whole(seed: int) -> Array:
    """KV of all heads: [layers, 2, heads, tokens, dim]."""
    shape = (LAYERS, 2, HEADS, TOKENS, DIM)
    return np.random.default_rng(seed).integers(0, 1 << 16, shape, dtype=np.uint16)


def sliced(kv: Array, ranks: int, order: str) -> list[Array]:
    """What each rank holds, by numpy."""
    heads = np.repeat(kv, max(ranks // HEADS, 1), axis=2)
    parts = np.split(heads, ranks, axis=2)
    if order == "NHD":
        parts = [part.swapaxes(2, 3) for part in parts]
    return [np.ascontiguousarray(part) for part in parts]


@pytest.mark.parametrize("order", ["HND", "NHD"])
@pytest.mark.parametrize(("before", "after"), [(1, 8), (8, 2), (2, 4), (4, 16), (16, 1), (4, 4)])
def test_equals_slicing_by_numpy(order: str, before: int, after: int) -> None:
    kv = whole(before * 100 + after)
    found = remap_heads(sliced(kv, before, order), to_ranks=after, order=order, **GEOMETRY)
    expected = sliced(kv, after, order)
    assert len(found) == after
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == np.uint8
        assert mine.tobytes() == theirs.tobytes()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"order": "LND"}, "not declared"),
        ({"kv_factor": 1}, "latent"),
        ({"packed_scales": True}, "scales are packed"),
        ({"to_ranks": 3}, "8 KV heads cannot be shared out evenly among 3 ranks"),
        ({"layers": LAYERS + 1}, "the payload of rank 0 has"),
        ({"head_dim": 0}, "head_dim is 0"),
    ],
)
def test_refuses_with_the_reason(changed: dict[str, Any], reason: str) -> None:
    arguments = {**GEOMETRY, "to_ranks": 4, "order": "HND", **changed}
    with pytest.raises(KvConnectorConfigError, match=reason):
        remap_heads(sliced(whole(1), 2, "HND"), **arguments)
    with pytest.raises(KvConnectorConfigError, match="from_ranks is 0"):
        remap_heads([], **{**GEOMETRY, "to_ranks": 4, "order": "HND"})


def test_replicas_that_differ_are_not_one_block() -> None:
    parts = sliced(whole(2), 16, "HND")
    parts[5].flat[0] ^= 1
    with pytest.raises(KvConnectorLoadError, match="ranks 4 and 5"):
        remap_heads(parts, to_ranks=2, order="HND", **GEOMETRY)
