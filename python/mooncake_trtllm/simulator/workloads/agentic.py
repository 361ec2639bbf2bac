"""Twelve agents talk for twelve turns each, round-robin, over one shared system prompt.

The prompt of agent `a` at turn `t` (1 to 12) is the first `1024 + 512 * t + 7` tokens of the
agent's own stream, of which the first 1,024 are the system prompt that all agents share. With 32
tokens a block and an unlimited cache, 17,248 of 19,584 looked-up blocks hit.
"""

from __future__ import annotations

import numpy as np

from mooncake_trtllm.simulator.mixing import token_stream
from mooncake_trtllm.simulator.workloads.workload import Tokens, Workload

__all__ = ["agentic_workload"]

_AGENTS = 12
_TURNS = 12
_SYSTEM_TOKENS = 1024
_TURN_TOKENS = 512
_TAIL_TOKENS = 7
_VOCABULARY = 32000


def agentic_workload() -> Workload:
    """All 144 requests: turn 1 of every agent, then turn 2, and so on."""
    system = token_stream(0, _SYSTEM_TOKENS, _VOCABULARY)
    own_tokens = _TURN_TOKENS * _TURNS + _TAIL_TOKENS
    streams = [
        np.concatenate([system, token_stream(1 + agent, own_tokens, _VOCABULARY)])
        for agent in range(_AGENTS)
    ]
    lengths = tuple(
        _SYSTEM_TOKENS + _TURN_TOKENS * turn + _TAIL_TOKENS
        for turn in range(1, _TURNS + 1)
        for _ in range(_AGENTS)
    )

    def make(index: int) -> Tokens:
        return streams[index % _AGENTS][: lengths[index]]

    return Workload("agentic", 32, lengths, make)
