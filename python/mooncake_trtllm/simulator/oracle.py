"""What every byte of a KV cache must be.

The bytes of a position are a pure function of the identity (model, tokenizer, dtype, geometry,
tensor-parallel size, salt, LoRA adapter), of *all* tokens and media up to and including that
position, of the layer, of K or V, of the position itself and of the rank. Nothing here is shared
with the connector or its codec.

    term_i = mix(token_i, i, media at i)         one 64-bit word for each position
    x_p    = seed + term_0 + ... + term_p        (mod 2^64) the prefix, order included through i
    lane   = mix(x_p + constant(rank, layer, K or V, lane))
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mooncake_trtllm.simulator.geometry import Geometry
from mooncake_trtllm.simulator.mixing import Words, mix, mix_into
from mooncake_trtllm.simulator.pool import Bytes, Pool, spans
from mooncake_trtllm.simulator.prompt import Media, Prompt

__all__ = ["Oracle", "PrefixHash"]

_GOLDEN = 0x9E3779B97F4A7C15
_POSITION = np.uint64(0xD1342543DE82EF95)
_TOKEN = np.uint64(0xA24BAED4963EE407)
_MEDIA_STEP = np.uint64(0x9FB21C651E98DF25)
_CHUNK = 1 << 14


def _seed(*parts: object) -> int:
    """64 bits of a canonical text; JSON keeps 5, "5", null and "" apart."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


@dataclass
class PrefixHash:
    """`x_p` for every position of one sequence, which grows at its end."""

    words: Words
    length: int
    media: tuple[Media, ...]

    def at(self, position: int) -> int:
        """`x_p` of one position."""
        if not 0 <= position < self.length:
            raise IndexError(position)
        return int(self.words[position])


class Oracle:
    """The bytes of one rank of one model."""

    def __init__(
        self, geometry: Geometry, tp: int, rank: int, model_identity: Sequence[object]
    ) -> None:
        self._geometry = geometry
        self._token_bytes = geometry.token_bytes(tp)
        self._lanes = -(-self._token_bytes // 8)
        self._identity = [
            list(model_identity),
            geometry.layers,
            geometry.kv_heads,
            geometry.head_dim,
            geometry.tokens_per_block,
            geometry.dtype,
            geometry.kv_factor,
            tp,
        ]
        base = _seed("lanes", rank)
        count = geometry.layers * geometry.kv_factor * self._lanes
        self._constants: Words = np.array(
            [mix(base + index * _GOLDEN) for index in range(count)], dtype=np.uint64
        ).reshape(geometry.layers, geometry.kv_factor, self._lanes)
        self._scratch: Words = np.empty(max(_CHUNK, self._lanes), dtype=np.uint64)
        self._lane_buffer: Words = np.empty(0, dtype=np.uint64)
        self._positions: Words = np.empty(0, dtype=np.uint64)

    # Prefixes --------------------------------------------------------------------------------

    def prefix(self, prompt: Prompt, lora_content: object) -> PrefixHash:
        """The prefix hashes of a prompt."""
        start = _seed("scope", self._identity, prompt.cache_salt, lora_content)
        empty = PrefixHash(np.empty(0, dtype=np.uint64), 0, prompt.media)
        return self._extended(empty, prompt.token_array(), start)

    def extend(self, prefix: PrefixHash, tokens: Sequence[int]) -> None:
        """Appends tokens to a non-empty sequence."""
        grown = self._extended(
            prefix, np.asarray(tokens, dtype=np.int64), prefix.at(prefix.length - 1)
        )
        prefix.words, prefix.length = grown.words, grown.length

    def _extended(
        self, prefix: PrefixHash, tokens: npt.NDArray[np.integer], before: int
    ) -> PrefixHash:
        first, count = prefix.length, len(tokens)
        terms = np.empty(first + count, dtype=np.uint64)
        terms[:first] = prefix.words[:first]
        added = terms[first:]
        np.multiply(tokens.astype(np.uint64), _TOKEN, out=added)
        added += self._position_words(first + count)[first:]
        for item in prefix.media:
            lo, hi = max(item.start, first), min(item.start + item.length, first + count)
            if lo < hi:
                inside = np.arange(lo - item.start, hi - item.start, dtype=np.uint64)
                added[lo - first : hi - first] ^= np.uint64(item.word) + inside * _MEDIA_STEP
        for begin in range(0, count, _CHUNK):
            piece = added[begin : begin + _CHUNK]
            mix_into(piece, self._scratch[: len(piece)])
        if count:
            added[:1] += np.uint64(before)
        np.cumsum(added, out=added)
        return PrefixHash(terms, first + count, prefix.media)

    def _position_words(self, length: int) -> Words:
        if len(self._positions) < length:
            self._positions = np.arange(max(length, 1 << 12), dtype=np.uint64)
            self._positions *= _POSITION
        return self._positions[:length]

    def next_token(self, prefix: PrefixHash, vocabulary: int) -> int:
        """What greedy sampling yields after this prefix: equal on all ranks."""
        return mix(prefix.at(prefix.length - 1) ^ _GOLDEN) % vocabulary

    # Bytes -----------------------------------------------------------------------------------

    def write(
        self,
        pool: Pool,
        blocks: Sequence[int],
        prefix: PrefixHash,
        layer: int,
        start: int,
        stop: int,
    ) -> None:
        """Fills one layer of positions [start, stop), as a forward pass does."""
        for span in spans(start, stop, self._geometry.tokens_per_block):
            ids = blocks[span.first : span.first + span.blocks]
            for factor in range(self._geometry.kv_factor):
                data = self._bytes(prefix, layer, factor, span.start, span.length)
                if span.length % self._geometry.tokens_per_block == 0:
                    pool.tokens[ids, layer, factor] = data.reshape(
                        span.blocks, -1, self._token_bytes
                    )
                else:
                    page = pool.tokens[ids[0], layer, factor]
                    page[span.offset : span.offset + span.length] = data

    def first_wrong(
        self,
        pool: Pool,
        blocks: Sequence[int],
        prefix: PrefixHash,
        layer: int,
        start: int,
        stop: int,
    ) -> int | None:
        """The first position in [start, stop) whose bytes in this layer are not the oracle's."""
        wrong: int | None = None
        for span in spans(start, stop, self._geometry.tokens_per_block):
            ids = blocks[span.first : span.first + span.blocks]
            for factor in range(self._geometry.kv_factor):
                expected = self._bytes(prefix, layer, factor, span.start, span.length)
                if span.length % self._geometry.tokens_per_block == 0:
                    found = pool.tokens[ids, layer, factor].reshape(span.length, -1)
                else:
                    page = pool.tokens[ids[0], layer, factor]
                    found = page[span.offset : span.offset + span.length]
                if not np.array_equal(found, expected):
                    bad = int(np.flatnonzero((found != expected).any(axis=1))[0]) + span.start
                    wrong = bad if wrong is None else min(wrong, bad)
            if wrong is not None:
                return wrong
        return None

    def _bytes(self, prefix: PrefixHash, layer: int, factor: int, start: int, length: int) -> Bytes:
        """[length, token_bytes]; valid until the next call."""
        size = length * self._lanes
        if len(self._lane_buffer) < size:
            self._lane_buffer = np.empty(max(size, 1 << 14), dtype=np.uint64)
        words = self._lane_buffer[:size].reshape(length, self._lanes)
        rows = max(1, _CHUNK // self._lanes)
        constants = self._constants[layer, factor]
        for begin in range(0, length, rows):
            piece = words[begin : begin + rows]
            np.add(
                prefix.words[start + begin : start + begin + len(piece), np.newaxis],
                constants,
                out=piece,
            )
            flat = piece.reshape(-1)
            mix_into(flat, self._scratch[: len(flat)])
        return words.view(np.uint8)[:, : self._token_bytes]
