"""A real Mooncake Store whose two processes are killed, stopped and started again, by schedule."""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mooncake_trtllm import child_guard
from mooncake_trtllm.local_store import LocalStore
from support import signals

__all__ = ["KINDS", "Fault", "Faults", "MortalStore", "plan"]

CLIENT_TTL_S = 3
MASTER, STORAGE = "master", "storage"
BOTH = (MASTER, STORAGE)
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "storage killed": ("kill", (STORAGE,)),
    "storage stopped": ("stop", (STORAGE,)),
    "master killed": ("kill", (MASTER,)),
    "master stopped": ("stop", (MASTER,)),
    "both stopped": ("stop", BOTH),
    "both restarted": ("kill", BOTH),
}
"""A killed process comes back empty; with a killed master everything that was stored is lost."""


@dataclass(frozen=True)
class Fault:
    """What happens, and when: so many requests after the last one is over, and a moment more."""

    kind: str
    after_requests: int
    moment_s: float
    lasts_s: float


def plan(seed: int, count: int) -> list[Fault]:
    """The faults of a seed. Every kind occurs before one occurs again."""
    draw = random.Random(seed)
    kinds: list[str] = []
    while len(kinds) < count:
        kinds += draw.sample(list(KINDS), len(KINDS))
    return [
        Fault(
            kind,
            draw.randint(3, 15),
            draw.uniform(0.0, 0.2),
            # A blink, a while, and longer than the master believes in silent storage.
            draw.choice((draw.uniform(0.0, 0.2), draw.uniform(0.5, 2.0), CLIENT_TTL_S + 1.5)),
        )
        for kind in kinds[:count]
    ]


class MortalStore:
    """Master and storage of a LocalStore. One thread at a time; it must outlive what it starts."""

    def __init__(self, store: LocalStore) -> None:
        self._pids = {MASTER: store.master_pid, STORAGE: store.storage_pid}
        self._commands = {name: _command(pid) for name, pid in self._pids.items()}
        self._children: list[subprocess.Popen[bytes]] = []
        self._stopped: set[str] = set()
        self._dead: set[str] = set()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()

    def hit(self, kind: str) -> None:
        """Begin a fault."""
        how, names = KINDS[kind]
        for name in names:
            if how == "kill":
                self._dead.add(name)
                self._kill(name)
            else:
                self._stopped.add(name)
                signals.stop(self._pids[name])

    def mend(self) -> None:
        """End it: both processes run again, on their old ports."""
        for name in BOTH:
            if name in self._stopped:
                signals.resume(self._pids[name])
            if name in self._dead:
                child = child_guard.spawn(
                    self._commands[name], env=dict(os.environ), output=self._log
                )
                self._children.append(child)
                self._pids[name] = child.pid
        self._stopped.clear()
        self._dead.clear()

    def end(self) -> None:
        """Ends what was started here; all runs again before, so that the rest can end in order."""
        self.mend()
        for child in reversed(self._children):
            child_guard.stop(child)
        self._log.close()

    def said(self) -> str:
        """The last words of processes that were started again."""
        return child_guard.said(self._log)

    def ended_by_itself(self) -> list[str]:
        """Processes that should run and do not."""
        by_pid = {child.pid: child for child in self._children}
        return [
            name
            for name, pid in self._pids.items()
            if name not in self._dead and pid in by_pid and by_pid[pid].poll() is not None
        ]

    def _kill(self, name: str) -> None:
        signals.kill(self._pids[name])
        for child in self._children:
            if child.pid == self._pids[name]:
                child.wait()


def _command(pid: int) -> list[str]:
    parts = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    return [part.decode() for part in parts]


class Faults:
    """A thread that carries out a plan while somebody else reports how many requests ended.

    A fault is over when it was mended and `recovered()` was called; only then comes the next.
    """

    def __init__(self, store: LocalStore, faults: list[Fault]) -> None:
        self._store = MortalStore(store)
        self._plan = faults
        self._changed = threading.Condition()
        self._requests = 0
        self._over = False
        self._mended = 0
        self._recovered = 0
        self._problem = ""
        self.begun: list[Fault] = []
        self._thread = threading.Thread(target=self._run, name="faults")

    def __enter__(self) -> Faults:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """What was started here ends; call it once no client is left."""
        self.finish()
        self._thread.join()

    def served(self, count: int) -> None:
        """So many more requests ended."""
        with self._changed:
            self._requests += count
            self._changed.notify_all()

    def recovered(self) -> None:
        """All is well again since the last fault was mended."""
        with self._changed:
            self._recovered = self._mended
            self._changed.notify_all()

    def state(self) -> tuple[bool, int, str]:
        """Whether a fault is on, how many were mended, and what is wrong with the faults."""
        with self._changed:
            return len(self.begun) > self._mended, self._mended, self._problem

    def quiet(self, timeout_s: float) -> bool:
        """No fault begins any more; waits until the last one is mended."""
        with self._changed:
            self._plan = self._plan[: len(self.begun)]
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._mended == len(self.begun), timeout_s)

    def finish(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while (fault := self._next()) is not None:
                threading.Event().wait(fault.moment_s)
                self._store.hit(fault.kind)
                threading.Event().wait(fault.lasts_s)
                self._store.mend()
                with self._changed:
                    self._mended += 1
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - told to the run, which ends with it
            with self._changed:
                self._problem = f"{type(error).__name__}: {error}; {self._store.said()}"
        self._wait(lambda: False)
        self._store.end()

    def _next(self) -> Fault | None:
        with self._changed:
            if not self._wait(lambda: self._recovered == self._mended):
                return None
            ended = self._store.ended_by_itself()
            if ended:
                raise RuntimeError(f"ended by itself: {ended}")
            at = self._requests

        def is_due() -> bool:
            done = len(self.begun)
            return done < len(self._plan) and self._requests >= at + self._plan[done].after_requests

        with self._changed:
            if not self._wait(is_due):
                return None
            self.begun.append(self._plan[len(self.begun)])
            return self.begun[-1]

    def _wait(self, condition: Callable[[], bool]) -> bool:
        """Whether it came to hold before the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or condition())
            return not self._over
