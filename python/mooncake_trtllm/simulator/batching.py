"""Which requests run in a step, and how much of each: the same answer on every rank."""

from __future__ import annotations

from collections.abc import Iterable

from mooncake_trtllm.simulator.blocks import BlockManager
from mooncake_trtllm.simulator.config import InstanceConfig
from mooncake_trtllm.simulator.record import Record, State

__all__ = ["chunk_after_match", "form_batch"]


def form_batch(
    config: InstanceConfig, requests: Iterable[Record], blocks: BlockManager
) -> list[Record]:
    """Decode steps first, then prefill under way, then new requests while tokens and pages last.

    Admission reserves all the pages a request may ever need (the runtime's policy
    GUARANTEED_NO_EVICT), so nothing that runs can be starved; who does not fit waits.
    """
    live = [request for request in requests if not request.state.ended]
    room, budget = config.max_batch, config.max_num_tokens
    batch: list[Record] = []
    for request in live:
        if request.state is State.GENERATION and room and budget and _has_step(request):
            request.chunk = 1
            batch.append(request)
            room, budget = room - 1, budget - 1
    for request in live:
        if request.state is State.CONTEXT and room and budget:
            chunk = _chunk(config, request.position, request.prompt_len, budget)
            if chunk:
                request.chunk = chunk
                batch.append(request)
                room, budget = room - 1, budget - chunk
    spare = blocks.available() - sum(_reserved(config, request) for request in live)
    for request in live:
        if request.state is State.WAITING:
            needed = blocks_for(config, request.total_tokens)
            chunk = _chunk(config, 0, request.prompt_len, budget)
            if not (room and chunk and needed <= spare):
                break  # First come, first served.
            request.chunk = chunk
            batch.append(request)
            room, budget, spare = room - 1, budget - chunk, spare - needed
    return batch


def chunk_after_match(config: InstanceConfig, request: Record, budgeted: int) -> int:
    """The first chunk once the match is known: it begins behind the match, its end is floored."""
    return _chunk(config, request.position, request.prompt_len, budgeted)


def blocks_for(config: InstanceConfig, tokens: int) -> int:
    """Pages that hold `tokens` tokens."""
    return -(-tokens // config.geometry.tokens_per_block)


def _chunk(config: InstanceConfig, position: int, prompt_len: int, budget: int) -> int:
    remaining = prompt_len - position
    if remaining <= budget:
        return remaining
    if not config.chunked_prefill:
        return 0
    if not config.aligned_chunks:
        return budget
    end = (position + budget) // config.geometry.tokens_per_block
    return max(end * config.geometry.tokens_per_block - position, 0)


def _has_step(request: Record) -> bool:
    """Whether the scheduler, which foresees only the length limit, wants another token."""
    return request.produced < request.prompt.max_new_tokens


def _reserved(config: InstanceConfig, request: Record) -> int:
    """Pages that a running request may still ask for."""
    if request.state is State.WAITING:
        return 0
    return max(blocks_for(config, request.total_tokens) - len(request.blocks), 0)
