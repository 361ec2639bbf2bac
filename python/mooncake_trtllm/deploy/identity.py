"""Which process a record means: a pid alone may have been given to another one since."""

from __future__ import annotations

import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ProcessIdentity"]


@dataclass(frozen=True)
class ProcessIdentity:
    """A pid and when that process started, in clock ticks since boot."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """A process that runs now; `started` is 0 where it does not, which no record matches."""
        state, started = _stat(pid)
        return cls(pid, 0 if state in "ZX" else started)

    @property
    def alive(self) -> bool:
        """Whether this very process runs."""
        return self.started > 0 and ProcessIdentity.of(self.pid) == self

    def signal(self, number: signal.Signals, wait_s: float) -> bool:
        """Sends a signal to this very process and waits; returns whether it is gone."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            # The descriptor holds the process that has the pid now: if that is the one of the
            # record, the signal cannot reach another one.
            if not self.alive:
                return True
            signal.pidfd_send_signal(descriptor, number)
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            return bool(poll.poll(wait_s * 1000))
        except ProcessLookupError:
            return True
        finally:
            os.close(descriptor)


def _stat(pid: int) -> tuple[str, int]:
    """State and start time of a process, as /proc says."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "X", 0
    # The second field is the name, in parentheses, and may hold anything.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])
