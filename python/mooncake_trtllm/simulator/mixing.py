"""Deterministic 64-bit mixing, vectorised: equal on every machine and every version of numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["MASK", "Words", "mix", "mix_into", "token_stream"]

Words = npt.NDArray[np.uint64]
MASK = (1 << 64) - 1
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def mix_into(words: Words, scratch: Words) -> None:
    """The finaliser of splitmix64, in place; `scratch` has the same shape."""
    np.right_shift(words, np.uint64(30), out=scratch)
    np.bitwise_xor(words, scratch, out=words)
    np.multiply(words, np.uint64(_FIRST), out=words)
    np.right_shift(words, np.uint64(27), out=scratch)
    np.bitwise_xor(words, scratch, out=words)
    np.multiply(words, np.uint64(_SECOND), out=words)
    np.right_shift(words, np.uint64(31), out=scratch)
    np.bitwise_xor(words, scratch, out=words)


def mix(value: int) -> int:
    """The same for one number."""
    value &= MASK
    value = ((value ^ (value >> 30)) * _FIRST) & MASK
    value = ((value ^ (value >> 27)) * _SECOND) & MASK
    return value ^ (value >> 31)


def token_stream(seed: int, count: int, vocabulary: int) -> npt.NDArray[np.int32]:
    """`count` tokens that the seed decides; a shorter stream is a prefix of a longer one."""
    words = np.arange(count, dtype=np.uint64)
    words += np.uint64(mix(seed))
    mix_into(words, np.empty_like(words))
    tokens: npt.NDArray[np.int32] = (words % np.uint64(vocabulary)).astype(np.int32)
    return tokens
