"""The raw baselines: the same objects moved by nothing but the back end's own call."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

__all__ = ["CopyRaw", "FileRaw", "MooncakeRaw", "Raw"]


class Raw(Protocol):
    """What both sides of a pair need of a baseline."""

    load_name: str
    save_name: str

    def put(self, keys: Sequence[str]) -> None:
        """Store one object under each key, from memory that is ready."""

    def get(self, keys: Sequence[str]) -> None:
        """Read each object into memory that is ready."""

    def verify(self) -> None:
        """Raise unless the last get() returned what put() stored."""

    def clear(self) -> None:
        """Empty the store, the connector's objects included."""

    def close(self) -> None:
        """Release the client and its memory."""


class CopyRaw:
    """One copy of each object: what no store in memory can undercut."""

    load_name = save_name = "memcpy"

    def __init__(self, object_bytes: int, objects: int, seed: int) -> None:
        self._source = _random_bytes(object_bytes * objects, seed)
        self._stored = np.zeros_like(self._source)
        self._target = np.zeros_like(self._source)
        self._shape = (objects, object_bytes)

    def put(self, keys: Sequence[str]) -> None:
        """Copy the source; the number of keys is fixed by the constructor."""
        del keys
        self._copy(self._source, self._stored)

    def get(self, keys: Sequence[str]) -> None:
        """Copy it back."""
        del keys
        self._copy(self._stored, self._target)

    def poison(self) -> None:
        """Overwrite what get() fills."""
        self._target[:] = 0xA5

    def verify(self) -> None:
        """Raise unless the copies are equal."""
        if not np.array_equal(self._source, self._target):
            raise RuntimeError("memcpy: the copy differs from its source")

    def clear(self) -> None:
        """Leave everything: keys do not matter here."""

    def close(self) -> None:
        """Nothing to release."""

    def _copy(self, source: np.ndarray[Any, Any], target: np.ndarray[Any, Any]) -> None:
        # Object by object: the pages of a request do not lie side by side.
        for out, part in zip(target.reshape(self._shape), source.reshape(self._shape), strict=True):
            np.copyto(out, part)


class FileRaw:
    """One file per object: read from the page cache into a buffer, then copied once."""

    load_name = "read and memcpy"
    save_name = "write"

    def __init__(self, folder: Path, object_bytes: int, objects: int, seed: int) -> None:
        folder.mkdir()
        self._folder, self._object_bytes = folder, object_bytes
        self._source = _random_bytes(object_bytes * objects, seed)
        self._target = np.zeros_like(self._source)
        self._buffer = np.zeros(object_bytes, dtype=np.uint8)

    def put(self, keys: Sequence[str]) -> None:
        """Write one file under each key."""
        for index, key in enumerate(keys):
            self._file(key).write_bytes(self._part(self._source, index).data)

    def get(self, keys: Sequence[str]) -> None:
        """Read each file whole, and copy it to its place."""
        for index, key in enumerate(keys):
            descriptor = os.open(self._file(key), os.O_RDONLY)
            try:
                got = os.preadv(descriptor, [self._buffer.data], 0)
            finally:
                os.close(descriptor)
            if got != self._object_bytes:
                raise RuntimeError(f"read {got} of {self._object_bytes} bytes of {key}")
            np.copyto(self._part(self._target, index), self._buffer)

    def verify(self) -> None:
        """Raise unless all objects came back as they were."""
        if not np.array_equal(self._source, self._target):
            raise RuntimeError("read files: other bytes than were written")

    def clear(self) -> None:
        """Remove the baseline's own files."""
        for file in self._folder.iterdir():
            file.unlink()

    def close(self) -> None:
        """Nothing to release: the folder is the caller's."""

    def _file(self, key: str) -> Path:
        return self._folder / key.replace("/", "-")

    def _part(self, whole: np.ndarray[Any, Any], index: int) -> np.ndarray[Any, Any]:
        return whole[index * self._object_bytes : (index + 1) * self._object_bytes]


class MooncakeRaw:
    """A Mooncake client of this process, zero-copy from and to one registered buffer each way."""

    load_name = "batch_get_into"
    save_name = "batch_put_from"

    def __init__(self, object_bytes: int, objects: int, seed: int) -> None:
        from mooncake.store import MooncakeDistributedStore

        self._object_bytes, self._objects = object_bytes, objects
        self._source = _random_bytes(object_bytes * objects, seed)
        self._target = np.zeros_like(self._source)
        self._client: Any = MooncakeDistributedStore()
        # No segment and no local buffer: storage is a process of its own, all calls are zero-copy.
        code = self._client.setup(
            os.environ["MOONCAKE_LOCAL_HOSTNAME"],
            os.environ["MOONCAKE_TE_META_DATA_SERVER"],
            0,
            0,
            os.environ["MOONCAKE_PROTOCOL"],
            "",
            os.environ["MOONCAKE_MASTER"],
        )
        if code != 0:
            raise ConnectionError(f"{os.environ['MOONCAKE_MASTER']}: setup answered {code}")
        for buffer in (self._source, self._target):
            code = self._client.register_buffer(buffer.ctypes.data, buffer.nbytes)
            if code != 0:
                raise RuntimeError(f"register_buffer answered {code}")

    def put(self, keys: Sequence[str]) -> None:
        """One batch_put_from of all objects."""
        codes = self._client.batch_put_from(list(keys), *self._places(self._source, len(keys)))
        if any(code != 0 for code in codes):
            raise RuntimeError(f"batch_put_from answered {codes}")

    def get(self, keys: Sequence[str]) -> None:
        """One batch_get_into of all objects."""
        sizes = self._client.batch_get_into(list(keys), *self._places(self._target, len(keys)))
        if any(size != self._object_bytes for size in sizes):
            raise RuntimeError(f"batch_get_into answered {sizes}")

    def verify(self) -> None:
        """Raise unless all objects came back as they were."""
        if not np.array_equal(self._source, self._target):
            raise RuntimeError("batch_get_into returned other bytes than batch_put_from stored")

    def fill_once(self, segment_bytes: int) -> None:
        """Touch every page of the segment: the first write to fresh memory costs twice as much."""
        stored = 0
        for round_number in range(segment_bytes // (self._object_bytes * self._objects) + 1):
            keys = [f"fill/{round_number}/{index}" for index in range(self._objects)]
            codes = self._client.batch_put_from(keys, *self._places(self._source, len(keys)))
            stored += sum(code == 0 for code in codes)
        if stored * self._object_bytes < segment_bytes * 0.8:
            raise RuntimeError(f"only {stored} objects fitted into {segment_bytes} bytes")
        self.clear()

    def clear(self) -> None:
        """Remove every object, leased or not."""
        self._client.remove_all(True)

    def close(self) -> None:
        """Close the client, then release the buffers."""
        for buffer in (self._source, self._target):
            self._client.unregister_buffer(buffer.ctypes.data)
        self._client.close()

    def _places(self, buffer: np.ndarray[Any, Any], count: int) -> tuple[list[int], list[int]]:
        base = buffer.ctypes.data
        return (
            [base + index * self._object_bytes for index in range(count)],
            [self._object_bytes] * count,
        )


def _random_bytes(count: int, seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)
