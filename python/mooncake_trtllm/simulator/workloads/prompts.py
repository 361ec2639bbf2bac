"""So many prompts of one length that share nothing."""

from __future__ import annotations

from mooncake_trtllm.simulator.mixing import token_stream
from mooncake_trtllm.simulator.workloads.workload import Tokens, Workload

__all__ = ["prompts_workload"]

_VOCABULARY = 32000


def prompts_workload(count: int, tokens: int, tokens_per_block: int) -> Workload:
    """The same prompts each time."""

    def make(index: int) -> Tokens:
        return token_stream(1 + index, tokens, _VOCABULARY)

    return Workload("prompts", tokens_per_block, (tokens,) * count, make)
