"""A process that tests stop or kill does nothing any more once the call returns."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support import signals
from support.waiting import wait_until

THREADS = 4
ROUNDS = 60
A_MOMENT_S = 0.01
A_WHILE_S = 30.0
# Forked and not threads, as threads of Python take turns; one session, so that a group can be hit.
BUSY = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
COUNTING = f"""
import mmap, sys, threading
memory = mmap.mmap(int(sys.argv[1]), {THREADS * 8})
counts = memoryview(memory).cast("Q")
def count(at):
    while True:
        counts[at] += 1
for at in range(1, {THREADS}):
    threading.Thread(target=count, args=(at,)).start()
count(0)
"""


class Counting:
    """A process whose threads count for as long as they run."""

    def __init__(self, process: subprocess.Popen[bytes], memory: mmap.mmap) -> None:
        self.pid = process.pid
        self._memory = memory

    def goes_on(self, within_s: float) -> bool:
        before = self._memory[:]
        return wait_until(lambda: self._memory[:] != before, within_s)


@contextmanager
def counting() -> Iterator[Counting]:
    with tempfile.TemporaryFile() as file:
        file.truncate(THREADS * 8)
        fd = file.fileno()
        process = subprocess.Popen([sys.executable, "-c", COUNTING, str(fd)], pass_fds=(fd,))
        try:
            with mmap.mmap(fd, THREADS * 8) as memory:
                yield Counting(process, memory)
        finally:
            process.kill()
            process.wait()


@pytest.fixture(name="busy", scope="module", autouse=True)
def busy_fixture() -> Iterator[None]:
    """No core is free, so that a signal waits for its turn."""
    process = subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True)
    yield
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_a_stopped_process_does_nothing_until_it_is_resumed() -> None:
    with counting() as other:
        for _ in range(ROUNDS):
            assert other.goes_on(A_WHILE_S)
            with signals.stopped(other.pid):
                assert not other.goes_on(A_MOMENT_S)
        assert other.goes_on(A_WHILE_S)


def test_a_killed_process_does_nothing_even_if_it_was_stopped() -> None:
    for is_stopped in (False, True):
        with counting() as other:
            assert other.goes_on(A_WHILE_S)
            if is_stopped:
                signals.stop(other.pid)
            signals.kill(other.pid)
            assert not other.goes_on(A_MOMENT_S)


def test_a_process_that_is_gone_is_no_process_to_stop() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(ProcessLookupError):
        signals.stop(process.pid)
