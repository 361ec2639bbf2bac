"""What a rank does between its start and its end: operations in, replies out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from mooncake_trtllm.simulator.collectives import Collective
from mooncake_trtllm.simulator.config import InstanceConfig
from mooncake_trtllm.simulator.engine import Engine
from mooncake_trtllm.simulator.violations import describe_failure

__all__ = ["Channel", "Operation", "serve"]

_ALIVE_EVERY_S = 0.5

Operation = tuple[str, tuple[Any, ...]]
"""The name of an Engine method and its arguments."""


class Channel(Protocol):
    """A rank's end of its line to the instance."""

    def send(self, message: tuple[str, Any]) -> None:
        """Never blocks for long."""

    def receive(self) -> list[Operation] | None:
        """The next operations; None: close. Blocks."""


def serve(
    config: InstanceConfig,
    rank: int,
    collective: Collective,
    channel: Channel,
    *,
    enter_thread: Callable[[], None],
    abort: Callable[[str], None],
) -> None:
    """Runs one rank to its end. Every outcome is told on the channel; nothing is raised."""
    last = time.monotonic()

    def beat() -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > _ALIVE_EVERY_S:
            last = now
            channel.send(("alive", None))

    try:
        engine = Engine(config, rank, collective, beat=beat, enter_thread=enter_thread)
        channel.send(("done", None))
        while True:
            operations = channel.receive()
            if operations is None:
                engine.close()
                del engine
                channel.send(("done", None))
                return
            replies = [getattr(engine, name)(*arguments) for name, arguments in operations]
            channel.send(("done", replies))
    except BaseException as error:  # noqa: BLE001 - told to the instance, which raises it
        failure = describe_failure(rank, error)
        channel.send(("failed", failure))
        abort(f"rank {rank} failed: {failure.type_name}: {failure.message}")
