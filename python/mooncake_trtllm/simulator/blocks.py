"""The runtime's own block allocator: free list, reference counts, a radix tree for local reuse.

All ranks run it in lockstep, so block ids are equal on all of them. Pages that nobody owns are
poisoned; pages that only the tree owns keep a checksum, so that a late write to one shows. The free
list is a stack: a freed page is handed out again at the first occasion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mooncake_trtllm.simulator.pool import Pool
from mooncake_trtllm.simulator.violations import InvariantError, SimulationError

__all__ = ["BlockManager", "LocalMatch"]


@dataclass(eq=False)
class _Node:
    """One full block in the radix tree; the root has no block."""

    parent: _Node | None
    tokens: tuple[int, ...]
    block: int
    children: dict[tuple[int, ...], _Node] = field(default_factory=dict)
    used_at: int = 0
    checksum: int = 0


@dataclass
class LocalMatch:
    """What the local tree offers a prompt: whole blocks, and perhaps part of one more."""

    blocks: list[int]
    partial_source: int | None = None
    tokens: int = 0


class BlockManager:
    """Owns the pages of one rank's pool."""

    def __init__(self, pool: Pool, *, reuse: bool, partial_reuse: bool) -> None:
        self._pool = pool
        self._tokens_per_block = pool.geometry.tokens_per_block
        self._reuse = reuse
        self._partial_reuse = partial_reuse
        self._free = list(range(pool.num_blocks))[::-1]
        self._is_free = np.ones(pool.num_blocks, dtype=np.bool_)
        self._references = [0] * pool.num_blocks
        self._roots: dict[object, _Node] = {}
        self._node_of: dict[int, _Node] = {}
        self._clock = 0

    # Room ------------------------------------------------------------------------------------

    def available(self) -> int:
        """Blocks that could be handed out: free ones and those only the tree holds."""
        pinned: set[int] = set()
        for block, node in self._node_of.items():
            if self._references[block]:
                above: _Node | None = node
                while above is not None and above.block not in pinned:
                    pinned.add(above.block)
                    above = above.parent
        return len(self._free) + len(self._node_of) - len(pinned & self._node_of.keys())

    def in_use(self) -> int:
        """Blocks that requests hold."""
        return sum(1 for count in self._references if count)

    # Life of a request's blocks --------------------------------------------------------------

    def match(self, scope: object, tokens: Sequence[int]) -> LocalMatch:
        """The longest local match of a prompt, its last token excluded. Holds the blocks."""
        match = LocalMatch([])
        if not self._reuse:
            return match
        size, usable = self._tokens_per_block, len(tokens) - 1
        self._clock += 1
        node = self._roots.get(scope)
        while node is not None:
            begin = len(match.blocks) * size
            child = None
            if begin + size <= usable:
                child = node.children.get(tuple(tokens[begin : begin + size]))
            if child is None:
                break
            self._verify_cached(child)
            child.used_at = self._clock
            self._hold(child.block)
            match.blocks.append(child.block)
            node = child
        match.tokens = len(match.blocks) * size
        if self._partial_reuse and node is not None:
            self._match_partial(
                match, node, tokens[match.tokens : min(usable, match.tokens + size)]
            )
        return match

    def allocate(self, match: LocalMatch, count: int) -> list[int]:
        """Completes a match to `count` blocks. The caller has checked that there is room."""
        blocks = list(match.blocks)
        while len(blocks) < count:
            blocks.append(self.take())
        if match.partial_source is not None:
            self._pool.copy(match.partial_source, blocks[len(match.blocks)])
            self._drop(match.partial_source)
        return blocks

    def take(self) -> int:
        """One more block, evicting the least recently used leaf of the tree if need be."""
        if not self._free:
            self._evict_one()
        block = self._free.pop()
        self._is_free[block] = False
        self._hold(block)
        return block

    def remember(self, scope: object, tokens: Sequence[int], blocks: Sequence[int]) -> None:
        """Puts the full blocks of a computed prefix into the tree."""
        if not self._reuse:
            return
        size = self._tokens_per_block
        node = self._roots.setdefault(scope, _Node(None, (), -1))
        for index in range(min(len(tokens) // size, len(blocks))):
            key = tuple(tokens[index * size : (index + 1) * size])
            child = node.children.get(key)
            if child is None:
                if blocks[index] in self._node_of:
                    return  # The page already stands for another place in the tree.
                child = _Node(node, key, blocks[index])
                child.checksum = self._pool.checksum(child.block)
                node.children[key] = child
                self._node_of[child.block] = child
            child.used_at = self._clock
            node = child

    def release(self, blocks: Sequence[int]) -> None:
        """A request gives up its blocks; those that nobody else holds are poisoned at once."""
        for block in reversed(blocks):
            self._drop(block)

    # Checks ----------------------------------------------------------------------------------

    def check(self) -> None:
        """I4: free pages still hold poison, and nothing was written outside the pool."""
        touched = self._pool.touched(self._is_free)
        if touched:
            raise InvariantError("I4", f"page {touched[0]} was written after its release")
        if not self._pool.guards_intact():
            raise InvariantError("I4", "bytes outside the pool were written")

    def check_cached(self) -> None:
        """I4: pages that the tree alone holds are as they were when it took them."""
        for block, node in self._node_of.items():
            if not self._references[block]:
                self._verify_cached(node)

    # Inside ----------------------------------------------------------------------------------

    def _match_partial(self, match: LocalMatch, node: _Node, rest: Sequence[int]) -> None:
        """Finds the child that shares the most leading tokens with `rest`."""
        best, best_length = None, 0
        for key, child in node.children.items():
            length = 0
            while length < len(rest) and key[length] == rest[length]:
                length += 1
            if length > best_length:
                best, best_length = child, length
        if best is not None:
            self._verify_cached(best)
            self._hold(best.block)
            match.partial_source = best.block
            match.tokens += best_length

    def _hold(self, block: int) -> None:
        self._references[block] += 1

    def _drop(self, block: int) -> None:
        if self._references[block] < 1:
            raise SimulationError(f"block {block} is released more often than it was held")
        self._references[block] -= 1
        if not self._references[block] and block not in self._node_of:
            self._pool.poison([block])
            self._free.append(block)
            self._is_free[block] = True

    def _evict_one(self) -> None:
        leaves = [
            node
            for block, node in self._node_of.items()
            if not self._references[block] and not node.children
        ]
        if not leaves:
            raise SimulationError("the pool is exhausted although admission found room")
        node = min(leaves, key=lambda leaf: leaf.used_at)
        self._verify_cached(node)
        assert node.parent is not None
        del node.parent.children[node.tokens]
        del self._node_of[node.block]
        self._pool.poison([node.block])
        self._free.append(node.block)
        self._is_free[node.block] = True

    def _verify_cached(self, node: _Node) -> None:
        if self._pool.checksum(node.block) != node.checksum:
            raise InvariantError("I4", f"page {node.block} changed while only cached")
