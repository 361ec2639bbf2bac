"""The folder of a run that uses the file back end and whose user names none."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mooncake_trtllm.cli.exits import UsageError

__all__ = ["PrivateFolder", "private_folder"]

_SHARED_MEMORY = "/dev/shm"
_DISK_SHARE = 0.7


@dataclass(frozen=True)
class PrivateFolder:
    """A store in a folder, made by this run and removed after it."""

    path: Path

    def keys(self) -> list[str]:
        """Of all objects, sorted. Keys of blocks alone, whose names are plain."""
        names = (file.name for file in self.path.glob("[0-9a-f][0-9a-f]/=*"))
        return sorted(name[1:].replace(",", "/") for name in names)

    def alter(self, key: str) -> None:
        """Flips one bit in the middle of an object, behind the connector's back."""
        (file,) = self.path.glob("[0-9a-f][0-9a-f]/=" + key.replace("/", ","))
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0x10
        file.write_bytes(data)

    def remove(self) -> None:
        """Removes the store from under its users."""
        shutil.rmtree(self.path)


@contextlib.contextmanager
def private_folder(size: int, memory_bytes: int | None) -> Iterator[PrivateFolder]:
    """A place for so many bytes: in memory where they fit, else on the disk."""
    base = tempfile.gettempdir()
    in_memory = memory_bytes is None or size <= memory_bytes * _DISK_SHARE
    if in_memory and os.access(_SHARED_MEMORY, os.W_OK | os.X_OK) and _fits(size, _SHARED_MEMORY):
        base = _SHARED_MEMORY
    elif not _fits(size, base):
        raise UsageError(
            f"{size} bytes for the private folder are too much for {base}, which has "
            f"{shutil.disk_usage(base).free} bytes free; remedy: a smaller workload, TMPDIR on a "
            "larger disk, or --segment-bytes with fewer bytes, which costs hits"
        )
    with tempfile.TemporaryDirectory(
        prefix="mooncake-trtllm-", dir=base, ignore_cleanup_errors=True
    ) as folder:
        yield PrivateFolder(Path(folder) / "store")


def _fits(size: int, folder: str) -> bool:
    return size <= shutil.disk_usage(folder).free * _DISK_SHARE
