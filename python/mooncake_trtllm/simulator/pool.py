"""Paged KV memory on the host, poisoned wherever it belongs to nobody."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from mooncake_trtllm.simulator.geometry import DTYPES, Dtype, Geometry

__all__ = ["HostTensor", "Pool", "Span", "spans"]

_POISON = np.uint8(0xDB)
_GUARD_BYTES = 4096
_PAGE_ALIGNMENT = 4096

Bytes = npt.NDArray[np.uint8]

# The simulator looks at all free pages after every step, so this must run at memory speed.
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memcmp.restype = ctypes.c_int


def _all_poison(area: Bytes) -> bool:
    """Whether every byte is poison: the first one is, and each equals its successor."""
    address = int(area.ctypes.data)
    return bool(area[0] == _POISON and _memcmp(address, address + 1, area.size - 1) == 0)


class _HostDevice:
    """What `tensor.device` of a host tensor offers."""

    type = "cpu"
    index = None

    def __str__(self) -> str:
        return "cpu"


class HostTensor:
    """The part of a torch tensor's surface that the runtime hands to a connector."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: Dtype) -> None:
        self._address = address
        self.shape = shape
        self.dtype = dtype
        self.device = _HostDevice()

    def data_ptr(self) -> int:
        """The address of the first element."""
        return self._address

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    def is_contiguous(self) -> bool:
        """Always true for the V1 pool."""
        return True

    def dim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def numel(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    def stride(self) -> tuple[int, ...]:
        """Elements from one index to the next, by dimension."""
        strides = [1]
        for size in reversed(self.shape[1:]):
            strides.insert(0, strides[0] * size)
        return tuple(strides)


class Span:
    """Consecutive positions of a sequence: `blocks` pages from index `first`, or part of one."""

    __slots__ = ("blocks", "first", "length", "offset", "start")

    def __init__(self, start: int, first: int, blocks: int, offset: int, length: int) -> None:
        self.start = start
        self.first = first
        self.blocks = blocks
        self.offset = offset
        self.length = length


def spans(start: int, stop: int, tokens_per_block: int) -> Iterator[Span]:
    """Cuts [start, stop) into a ragged head, whole blocks and a ragged tail."""
    position = start
    while position < stop:
        block, offset = divmod(position, tokens_per_block)
        if offset == 0 and stop - position >= tokens_per_block:
            blocks = (stop - position) // tokens_per_block
            yield Span(position, block, blocks, 0, blocks * tokens_per_block)
            position += blocks * tokens_per_block
        else:
            length = min(tokens_per_block - offset, stop - position)
            yield Span(position, block, 1, offset, length)
            position += length


class Pool:
    """The V1 pool `[num_blocks, layers, kv_factor, block_size]` of one rank.

    A page that belongs to no request holds poison, and so do the guard bytes on either side of the
    pool: a read of a page that nobody filled shows, and so does a write that comes too late or goes
    astray.
    """

    def __init__(self, geometry: Geometry, tp: int, num_blocks: int) -> None:
        self.geometry = geometry
        self.num_blocks = num_blocks
        self.page_bytes = geometry.page_bytes(tp)
        token_bytes = geometry.token_bytes(tp)
        total = num_blocks * self.page_bytes
        self._memory: Bytes = np.full(
            total + 2 * _GUARD_BYTES + _PAGE_ALIGNMENT, _POISON, dtype=np.uint8
        )
        base = int(self._memory.ctypes.data)
        begin = -(-(base + _GUARD_BYTES) // _PAGE_ALIGNMENT) * _PAGE_ALIGNMENT - base
        self._before = self._memory[:begin]
        self._after = self._memory[begin + total :]
        body = self._memory[begin : begin + total]
        self.pages: Bytes = body.reshape(num_blocks, self.page_bytes)
        self.tokens: Bytes = body.reshape(
            num_blocks,
            geometry.layers,
            geometry.kv_factor,
            geometry.tokens_per_block,
            token_bytes,
        )
        dtype = DTYPES[geometry.dtype]
        block_size = geometry.tokens_per_block * token_bytes // dtype.itemsize
        self.tensor = HostTensor(
            base + begin,
            (num_blocks, geometry.layers, geometry.kv_factor, block_size),
            dtype,
        )

    def poison(self, blocks: Iterable[int]) -> None:
        """Overwrites whole pages with poison."""
        for block in blocks:
            self.pages[block] = _POISON

    def touched(self, blocks: npt.NDArray[np.bool_]) -> list[int]:
        """Of the pages marked in `blocks`, those that hold anything but poison."""
        edges = np.flatnonzero(np.diff(blocks, prepend=False, append=False))
        dirty: list[int] = []
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            if not _all_poison(self.pages[begin:end].reshape(-1)):
                dirty += [page for page in range(begin, end) if not _all_poison(self.pages[page])]
        return dirty

    def guards_intact(self) -> bool:
        """Whether the bytes just outside the pool are untouched."""
        return _all_poison(self._before) and _all_poison(self._after)

    def checksum(self, block: int) -> int:
        """A fingerprint of one page's bytes."""
        import zlib

        return zlib.crc32(self.pages[block])

    def copy(self, source: int, target: int) -> None:
        """Copies one page onto another."""
        self.pages[target] = self.pages[source]
