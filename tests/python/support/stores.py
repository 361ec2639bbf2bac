"""Looking into, and damaging, the memory store behind the engines of a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from support.engine import Engine

if TYPE_CHECKING:
    from mooncake_trtllm._native import MemoryStore

_CAPACITY = 1 << 20


def memory_of(engine: Engine) -> MemoryStore:
    """The memory store that an engine uses."""
    from mooncake_trtllm._stores import stores

    return stores._memory[("memory", engine.scheduler._instance.settings.memory_bytes)]


def shards(engine: Engine, rank: int = 0) -> list[str]:
    """Keys of a rank's shards, sorted."""
    return [key for key in memory_of(engine).keys() if key.endswith(f"/r{rank}")]  # noqa: SIM118


def manifests(engine: Engine) -> list[str]:
    """Keys of manifests, sorted."""
    return [key for key in memory_of(engine).keys() if key.endswith("/manifest")]  # noqa: SIM118


def read(engine: Engine, key: str) -> bytes:
    """An object's bytes."""
    ((reaction, data),) = memory_of(engine).get([key], _CAPACITY)
    assert reaction == "ok"
    return data


def write(engine: Engine, key: str, data: bytes) -> None:
    """Put other bytes under a key."""
    memory_of(engine).remove([key])
    assert memory_of(engine).put([(key, data)]) == [("ok", "stored")]


def alter(engine: Engine, key: str, change: Callable[[bytes], bytes]) -> None:
    """Replace an object by what `change` makes of it."""
    write(engine, key, change(read(engine, key)))


def key_of_block(engine: Engine, tokens: list[int], block: int, rank: int = 0) -> str:
    """The key of a shard of a plain request, made by the core from its parts."""
    from mooncake_trtllm import _native

    shape = engine.shape
    chain = _native.BlockChain(shape.tokens_per_block)
    chain.append(tokens)
    keyspace = shards(engine)[0].split("/")[1]
    return _native.ObjectKeys(bytes.fromhex(keyspace)).shard(chain.blocks()[block], rank)
