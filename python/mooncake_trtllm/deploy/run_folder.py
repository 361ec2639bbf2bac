"""The private folder of one store: its lock, its record, its log.

1. `up` takes the lock and hands it, open, to the process that keeps the store. The lock lives as
   long as that process, whatever ends it: who cannot get it knows that a store is up.
2. That process writes the record when the store is ready, and removes it when it ends. A record
   without a lock is what a crash left behind, and means nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mooncake_trtllm.cli.exits import UsageError
from mooncake_trtllm.deploy.identity import ProcessIdentity

__all__ = ["Record", "RunFolder"]


@dataclass(frozen=True)
class Record:
    """A store that is up."""

    keeper: ProcessIdentity
    master: ProcessIdentity
    storage: ProcessIdentity
    version: str | None
    admin_url: str
    segment_bytes: int
    environment: dict[str, str]
    """By which clients find it."""


class RunFolder:
    """Open it with `RunFolder.open`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log_path = path / "keeper.log"
        self._record_path = path / "store.json"

    @classmethod
    def open(cls, path: Path | None) -> RunFolder:
        """Makes the folder where it is not there; refuses one that others could tamper with."""
        folder = path or _default_path()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = folder.lstat()
        except OSError as error:
            raise UsageError(
                f"run folder {folder}: {error.strerror}; remedy: another --run-dir"
            ) from error
        wrong = None
        if not stat.S_ISDIR(found.st_mode):
            wrong = "is no folder"
        elif found.st_uid != os.geteuid():
            wrong = f"belongs to user {found.st_uid}"
        elif found.st_mode & 0o077:
            wrong = f"is open to others (mode {stat.S_IMODE(found.st_mode):o})"
        if wrong is not None:
            raise UsageError(
                f"run folder {folder} {wrong}; remedy: chmod 700, or another --run-dir"
            )
        return cls(folder)

    def take_lock(self) -> int | None:
        """The lock as an open descriptor, or None while a store is up or starting."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path / "lock", flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def in_use(self) -> bool:
        """Whether a store is up, or starting, or ending."""
        lock = self.take_lock()
        if lock is not None:
            os.close(lock)
        return lock is None

    def write(self, record: Record) -> None:
        """All or nothing."""
        descriptor, name = tempfile.mkstemp(dir=self.path)
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(record), file)
        os.replace(name, self._record_path)

    def read(self) -> Record | None:
        """The record, or None where there is none that can be read."""
        try:
            content: dict[str, Any] = json.loads(self._record_path.read_text())
            for name in ("keeper", "master", "storage"):
                content[name] = ProcessIdentity(**content[name])
            return Record(**content)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def forget(self) -> bool:
        """Removes the record; returns whether there was one."""
        try:
            self._record_path.unlink()
        except FileNotFoundError:
            return False
        return True


def _default_path() -> Path:
    """One for each user and machine."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "mooncake-trtllm"
    return Path(tempfile.gettempdir()) / f"mooncake-trtllm-{os.geteuid()}"
