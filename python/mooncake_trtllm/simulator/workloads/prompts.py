"""Prompts of one length that share nothing, asked for again and again."""

from __future__ import annotations

from mooncake_trtllm.simulator.mixing import token_stream
from mooncake_trtllm.simulator.workloads.workload import Tokens, Workload

__all__ = ["prompts_workload"]

_VOCABULARY = 32000


def prompts_workload(count: int, rounds: int, tokens: int, tokens_per_block: int) -> Workload:
    """`count` prompts in turn, so many rounds of them; the same each time."""

    def make(index: int) -> Tokens:
        return token_stream(1 + index % count, tokens, _VOCABULARY)

    return Workload("prompts", tokens_per_block, (tokens,) * (count * rounds), make)
