"""A rank as a process: this module run with `-m` and RANK LINE_FD [PIPE_FD ...]."""

from __future__ import annotations

import logging
import sys
from multiprocessing.connection import Connection
from typing import Any

from mooncake_trtllm.simulator.collectives import PipeCollective
from mooncake_trtllm.simulator.rank_loop import Operation, serve

__all__ = ["main"]


class _PipeChannel:
    def __init__(self, line: Connection) -> None:
        self._line = line

    def send(self, message: tuple[str, Any]) -> None:
        try:
            self._line.send(message)
        except OSError:
            # The instance is gone, and the kernel ends this process with it.
            sys.exit(1)

    def receive(self) -> list[Operation] | None:
        try:
            operations: list[Operation] | None = self._line.recv()
        except (EOFError, OSError):
            return None
        return operations


def main(arguments: list[str]) -> int:
    """Runs the rank whose number and file descriptors are given."""
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s (pid %(process)d): %(message)s"
    )
    rank, line_fd, *pipe_fds = (int(text) for text in arguments)
    line = Connection(line_fd)
    config = line.recv()
    logging.getLogger("mooncake_trtllm").setLevel(logging.WARNING if config.quiet else logging.INFO)
    pipes = [Connection(descriptor) for descriptor in pipe_fds]

    def abort(_reason: str) -> None:
        for pipe in pipes:
            pipe.close()

    serve(
        config,
        rank,
        PipeCollective(rank, pipes, config.hang_timeout_s),
        _PipeChannel(line),
        enter_thread=lambda: None,
        abort=abort,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
