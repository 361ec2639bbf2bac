"""Every rank a process of its own, told who it is by MC_RANK and MC_WORLD_SIZE."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection, wait
from typing import IO, Any

from mooncake_trtllm import child_guard
from mooncake_trtllm._set_by import marked
from mooncake_trtllm.local_store import describe_exit
from mooncake_trtllm.simulator.config import InstanceConfig
from mooncake_trtllm.simulator.rank_loop import Operation
from mooncake_trtllm.simulator.violations import RankFailure

__all__ = ["ProcessRanks"]

_EXIT_GRACE_S = 15.0


class ProcessRanks:
    """Starts one interpreter for each rank. A rank that hangs is killed with the instance."""

    def __init__(self, config: InstanceConfig) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lines: list[Connection] = []
        self._open: dict[Connection, int] = {}
        self._dead: list[tuple[int, tuple[str, Any]]] = []
        self._logs: list[IO[bytes] | None] = []
        hub = [multiprocessing.Pipe() for _ in range(config.tp - 1)]
        try:
            for rank in range(config.tp):
                ours, theirs = multiprocessing.Pipe()
                pipes = [ends[0] for ends in hub] if rank == 0 else [hub[rank - 1][1]]
                log = _log_file() if config.quiet else None
                self._logs.append(log)
                self._processes.append(_spawn(config, rank, theirs, pipes, log))
                theirs.close()
                self._lines.append(ours)
                self._open[ours] = rank
                ours.send(config)
        except BaseException:
            self.end(failed=True)
            raise
        finally:
            for ends in hub:
                for pipe in ends:
                    pipe.close()

    @property
    def pids(self) -> list[int]:
        """One process each."""
        return [process.pid for process in self._processes]

    def started(self) -> None:
        """Nothing to put back: the ranks have environments of their own."""

    def send(self, operations: list[Operation] | None) -> None:
        """The same operations to every rank; one that is gone shows in `receive`."""
        for rank, line in enumerate(self._lines):
            try:
                line.send(operations)
            except OSError:
                self._open.pop(line, None)
                self._dead.append((rank, ("failed", self._death(rank))))

    def receive(self, timeout_s: float) -> list[tuple[int, tuple[str, Any]]]:
        """Messages that have arrived, after at most `timeout_s`; a dead rank is a failure."""
        messages, self._dead = self._dead, []
        if messages or not self._open:
            return messages
        for line in wait(list(self._open), timeout_s):
            assert isinstance(line, Connection)
            rank = self._open[line]
            try:
                messages.append((rank, line.recv()))
            except (EOFError, OSError):
                del self._open[line]
                messages.append((rank, ("failed", self._death(rank))))
        return messages

    def end(self, *, failed: bool) -> None:
        """Waits for the processes to exit, or kills them."""
        deadline = time.monotonic() + _EXIT_GRACE_S
        for line in self._lines:
            line.close()
        for process in self._processes:
            if failed:
                process.kill()
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for log in self._logs:
            if log is not None:
                log.close()

    def _death(self, rank: int) -> RankFailure:
        process = self._processes[rank]
        try:
            status = describe_exit(process.wait(5.0))
        except subprocess.TimeoutExpired:
            status = "its line closed but it still runs"
        text = f"process {process.pid} of rank {rank} ended with {status}"
        log = self._logs[rank]
        said = child_guard.said(log) if log is not None else ""
        return RankFailure(rank, "crash", "RankDied", f"{text}; it said: {said}" if said else text)


def _log_file() -> IO[bytes]:
    """Without a name in the file system, so that nothing can be left behind."""
    return tempfile.TemporaryFile()


def _spawn(
    config: InstanceConfig,
    rank: int,
    line: Connection,
    pipes: list[Connection],
    log: IO[bytes] | None,
) -> subprocess.Popen[bytes]:
    descriptors = [line.fileno(), *(pipe.fileno() for pipe in pipes)]
    environment = {
        **os.environ,
        **marked({**config.env, "MC_RANK": str(rank), "MC_WORLD_SIZE": str(config.tp)}),
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
    }
    argv = [sys.executable, "-m", "mooncake_trtllm.simulator.rank_process", str(rank)]
    argv += [str(descriptor) for descriptor in descriptors]
    return child_guard.spawn(argv, env=environment, pass_fds=descriptors, output=log)
