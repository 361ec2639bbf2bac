"""Random runs by seed, for any connector."""

from __future__ import annotations

import random
from typing import Any

from mooncake_trtllm.simulator import Instance, Media, Prompt, RequestResult

__all__ = ["play", "settings_of"]


def settings_of(draw: random.Random) -> dict[str, Any]:
    return {
        "tp": draw.choice((1, 1, 2)),
        "overlap": draw.random() < 0.5,
        "block_reuse": draw.random() < 0.7,
        "partial_reuse": draw.random() < 0.5,
        "batched_queries": draw.random() < 0.5,
        "aligned_chunks": draw.random() < 0.7,
        "cuda_graphs": draw.random() < 0.5,
        "shape": draw.choice(("1.1", "1.3")),
        "max_num_tokens": draw.choice((8, 24, 40, 512)),
        "max_batch": draw.choice((1, 3, 8)),
        "pool_blocks": draw.choice((20, 32, 64)),
        "unguarded_metadata": draw.random() < 0.3,
    }


def prompt_of(draw: random.Random) -> Prompt:
    """Few stems and many tails, so that prefixes meet; scopes that must not."""
    base = draw.choice((1000, 2000))
    stem = list(range(base, base + draw.choice((0, 8, 20, 48))))
    tail = [draw.randrange(50) for _ in range(draw.randrange(1, 30))]
    media: tuple[Media, ...] = ()
    if draw.random() < 0.2 and len(stem) >= 8:
        media = (Media(bytes([draw.randrange(2)]) * 32, draw.randrange(6), draw.randrange(1, 9)),)
    new_tokens = draw.randrange(1, 12)
    return Prompt(
        stem + tail,
        max_new_tokens=new_tokens,
        eos_after=draw.choice((None, None, draw.randrange(1, new_tokens + 1))),
        cache_salt=draw.choice((None, None, "", "5", 5)),
        lora_task_id=draw.choice((None, None, None, 7)),
        media=media,
    )


def play(instance: Instance, draw: random.Random) -> list[RequestResult]:
    ended: list[RequestResult] = []
    live: list[int] = []
    for _ in range(60):
        action = draw.random()
        if action < 0.45:
            live.append(instance.submit(prompt_of(draw)))
        elif action < 0.55 and live:
            instance.cancel(draw.choice(live[-2:]))
        else:
            ended += instance.step(draw.randrange(1, 4))
    ended += instance.run()
    instance.drain()
    assert len(ended) == len(live)
    assert all(result.state in ("finished", "cancelled") for result in ended)
    return ended
