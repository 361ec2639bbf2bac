"""The local allocator: sharing, eviction, poison, and what it notices."""

from __future__ import annotations

import numpy as np
import pytest

from mooncake_trtllm.simulator import Geometry, InvariantError, SimulationError
from mooncake_trtllm.simulator.blocks import BlockManager
from mooncake_trtllm.simulator.pool import Pool

GEOMETRY = Geometry(layers=1, kv_heads=1, head_dim=8, tokens_per_block=4)
TOKENS = list(range(20))


def manager(blocks: int = 8, *, reuse: bool = True, partial: bool = False) -> BlockManager:
    return BlockManager(Pool(GEOMETRY, 1, blocks), reuse=reuse, partial_reuse=partial)


def stored(
    owner: BlockManager, tokens: list[int], scope: object = None, fill: int = 1
) -> list[int]:
    """Allocates, fills and remembers a sequence; returns its blocks, still held."""
    blocks = owner.allocate(owner.match(scope, tokens), -(-len(tokens) // 4))
    for block in blocks:
        owner._pool.pages[block] = fill
    owner.remember(scope, tokens, blocks)
    return blocks


def test_a_freed_page_is_poisoned_and_handed_out_next() -> None:
    owner = manager(reuse=False)
    blocks = stored(owner, TOKENS)
    owner.release(blocks)
    owner.check()
    assert owner.available() == 8
    assert owner.allocate(owner.match(None, TOKENS), 5) == blocks


def test_a_match_is_whole_blocks_of_the_same_scope_without_the_last_token() -> None:
    owner = manager()
    blocks = stored(owner, TOKENS)
    match = owner.match(None, TOKENS)
    assert (match.blocks, match.tokens) == (blocks[:4], 16)
    assert owner.match("other", TOKENS).tokens == 0
    assert owner.match(None, [*TOKENS[:9], 99, *TOKENS[10:]]).tokens == 8


def test_a_partial_match_is_copied_and_leaves_the_source_alone() -> None:
    owner = manager(partial=True)
    blocks = stored(owner, TOKENS, fill=7)
    match = owner.match(None, [*TOKENS[:6], 99, 98, 97])
    assert (match.blocks, match.tokens) == (blocks[:1], 6)
    copy = owner.allocate(match, 3)[1]
    assert copy != blocks[1]
    assert (owner._pool.pages[copy] == 7).all()
    owner._pool.pages[copy] = 9
    owner.check_cached()
    assert (owner._pool.pages[blocks[1]] == 7).all()


def test_eviction_takes_the_least_recently_used_leaf_and_spares_what_is_held() -> None:
    owner = manager(6)
    old = stored(owner, TOKENS[:8])
    owner.release(old)
    held = stored(owner, [50, 51, 52, 53])
    assert owner.available() == 5
    taken = [owner.take() for _ in range(5)]
    # Leaf before parent, and never the held one.
    assert taken[-2:] == [old[1], old[0]]
    assert held[0] not in taken
    with pytest.raises(SimulationError, match="exhausted"):
        owner.take()


def test_a_parent_of_a_held_block_counts_as_taken() -> None:
    owner = manager(8)
    first = stored(owner, TOKENS[:4])
    # The same prefix computed twice: the second copy of block 0 is not in the tree, its child is.
    second = owner.allocate(owner.match("none", TOKENS[:8]), 2)
    owner.remember(None, TOKENS[:8], second)
    owner.release(first)
    assert owner.available() == 5
    for _ in range(5):
        owner.take()


def test_writes_to_pages_that_nobody_owns_are_noticed() -> None:
    owner = manager()
    blocks = stored(owner, TOKENS)
    owner.release(blocks)
    owner.check()
    owner.check_cached()
    owner._pool.pages[blocks[2], 3] ^= 1
    with pytest.raises(InvariantError, match="changed while only cached"):
        owner.check_cached()
    owner._pool.pages[blocks[2], 3] ^= 1
    free = next(block for block in range(8) if block not in blocks)
    owner._pool.pages[free, 0] = np.uint8(0)
    with pytest.raises(InvariantError, match=f"page {free} was written after its release"):
        owner.check()


def test_releasing_twice_is_a_defect_of_the_simulator() -> None:
    owner = manager(reuse=False)
    blocks = stored(owner, TOKENS)
    owner.release(blocks)
    with pytest.raises(SimulationError, match="more often"):
        owner.release(blocks)
