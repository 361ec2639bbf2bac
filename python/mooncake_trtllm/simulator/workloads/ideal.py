"""An exact, unlimited cache: what the best possible connector hits on the same requests.

It keys a block by all tokens up to its end, like any correct connector must, but with a chain of
its own (BLAKE2b over raw tokens): it shares nothing with the connector.
"""

from __future__ import annotations

import hashlib

import numpy as np

from mooncake_trtllm.simulator.workloads.workload import Tokens

__all__ = ["IdealCache"]


class IdealCache:
    """Of a prompt of n tokens it looks up the first `(n - 1) // B` blocks, then stores `n // B`."""

    def __init__(self, tokens_per_block: int) -> None:
        self._size = tokens_per_block
        self._stored: set[bytes] = set()

    @property
    def blocks(self) -> int:
        """Distinct blocks stored."""
        return len(self._stored)

    def serve(self, tokens: Tokens) -> int:
        """Blocks of this prompt that hit; stores its full blocks."""
        data = np.ascontiguousarray(tokens, dtype="<i4").data.cast("B")
        block_bytes = 4 * self._size
        looked_up = (len(tokens) - 1) // self._size
        hits, hitting, digest = 0, True, b""
        for index in range(len(tokens) // self._size):
            chain = hashlib.blake2b(digest, digest_size=16)
            chain.update(data[index * block_bytes : (index + 1) * block_bytes])
            digest = chain.digest()
            hitting = hitting and index < looked_up and digest in self._stored
            hits += hitting
            self._stored.add(digest)
        return hits
