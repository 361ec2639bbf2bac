"""Where a KV pool lies in memory, taken from whatever object the runtime registers."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mooncake_trtllm._dtypes import dtype_bytes, dtype_name
from mooncake_trtllm.errors import KvConnectorConfigError

__all__ = ["HostPool", "host_pool"]

_LARGEST_ADDRESS = (1 << 64) - 1
# Of numpy's type strings: ">f2" is foreign here, "|O" are Python objects.
_FOREIGN_ORDER = ">" if sys.byteorder == "little" else "<"
_NO_NUMBERS = frozenset("OSUMmt")
_DLPACK_CPU = 1
_DLPACK_CUDA_HOST = 3


@dataclass(frozen=True)
class HostPool:
    """A contiguous pool in host memory. `owner` keeps the memory alive."""

    owner: Any
    address: int
    shape: tuple[int, ...]
    element_bytes: int
    dtype: str

    @property
    def total_bytes(self) -> int:
        """Return the bytes of the whole pool."""
        return math.prod(self.shape) * self.element_bytes


def host_pool(pool: Any) -> HostPool:
    """Describe `pool`, a tensor-like object or one with the array, buffer or DLPack interface.

    Raises KvConnectorConfigError for device memory, for memory that is not contiguous or not
    writable, and for objects that do not say where their bytes are.
    """
    try:
        _refuse_device_memory(pool)
        found = _describe(pool)
    except KvConnectorConfigError:
        raise
    except Exception as error:
        raise _refused(
            pool,
            f"what it says of itself cannot be read ({type(error).__name__}: {error})",
            "register the tensor that the KV cache manager returns",
        ) from error
    _check(found)
    return found


def _describe(pool: Any) -> HostPool:
    if hasattr(pool, "data_ptr"):
        return _from_tensor(pool)
    if hasattr(pool, "__array_interface__"):
        return _from_array(pool, pool)
    if _offers_buffer(pool):
        return _from_buffer(pool)
    if hasattr(pool, "__dlpack__"):
        return _from_dlpack(pool)
    raise _refused(
        pool,
        "it has neither data_ptr() nor the array, buffer or DLPack interface",
        "register the tensor that the KV cache manager returns",
    )


def _refuse_device_memory(pool: Any) -> None:
    device = getattr(getattr(pool, "device", None), "type", None)
    if device is None and isinstance(getattr(pool, "device", None), str):
        device = pool.device.partition(":")[0]
    if hasattr(pool, "__cuda_array_interface__"):
        device = "cuda"
    if device is None and hasattr(pool, "__dlpack_device__"):
        kind = int(pool.__dlpack_device__()[0])
        device = "cpu" if kind in (_DLPACK_CPU, _DLPACK_CUDA_HOST) else f"DLPack device {kind}"
    if device not in (None, "cpu"):
        raise _refused(
            pool,
            f"it lies in {device} memory, and this version moves host memory only",
            "use a version with device support, or register a pool in host memory",
        )


def _from_tensor(pool: Any) -> HostPool:
    shape = tuple(operator.index(size) for size in pool.shape)
    element_bytes = _element_bytes(pool)
    is_contiguous = getattr(pool, "is_contiguous", None)
    stride = getattr(pool, "stride", None)
    if callable(is_contiguous):
        contiguous = bool(is_contiguous())
    elif callable(stride):
        contiguous = _is_dense(shape, [int(s) for s in stride()], 1)
    else:
        strides = getattr(pool, "strides", None)
        contiguous = strides is None or _is_dense(shape, [int(s) for s in strides], element_bytes)
    if not contiguous:
        raise _not_contiguous(pool)
    if pool.dtype is None:
        raise _refused(pool, "its dtype is None", "register the tensor itself")
    return HostPool(
        pool, operator.index(pool.data_ptr()), shape, element_bytes, dtype_name(pool.dtype)
    )


def _element_bytes(pool: Any) -> int:
    element_size = getattr(pool, "element_size", None)
    if callable(element_size):
        return operator.index(element_size())
    for source in (pool, pool.dtype):
        if hasattr(source, "itemsize"):
            return int(source.itemsize)
    raise _refused(pool, "its element size is unknown", "offer element_size()")


def _from_array(array: Any, owner: Any) -> HostPool:
    interface = array.__array_interface__
    address, read_only = interface["data"]
    shape = tuple(int(size) for size in interface["shape"])
    dtype = getattr(array, "dtype", None)
    element_bytes = int(dtype.itemsize) if dtype is not None else int(interface["typestr"][2:])
    strides = interface.get("strides")
    if strides is not None and not _is_dense(shape, strides, element_bytes):
        raise _not_contiguous(owner)
    if read_only:
        raise _read_only(owner)
    kind = str(interface["typestr"])[:2]
    if kind[0] == _FOREIGN_ORDER or kind[1] in _NO_NUMBERS or getattr(dtype, "fields", None):
        raise _refused(
            owner,
            f"its elements ({dtype if dtype is not None else kind}) are no numbers in the byte "
            "order of this machine",
            "register a pool of the type that the model computes with, or of plain bytes",
        )
    name = dtype_name(dtype if dtype is not None else interface["typestr"])
    return HostPool(owner, int(address), shape, element_bytes, name)


def _offers_buffer(pool: Any) -> bool:
    try:
        memoryview(pool).release()
    except (TypeError, BufferError, ValueError):
        return False
    return True


def _from_buffer(pool: Any) -> HostPool:
    import numpy as np

    view = memoryview(pool)
    if view.readonly:
        raise _read_only(pool)
    if not view.c_contiguous:
        raise _not_contiguous(pool)
    # The array holds the exported buffer, so that its owner cannot resize or free it.
    return _from_array(np.asarray(view), (pool, view))


def _from_dlpack(pool: Any) -> HostPool:
    import numpy as np

    try:
        array = np.from_dlpack(pool)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise _refused(
            pool,
            f"numpy cannot take its DLPack capsule ({error})",
            "register an object with data_ptr(), shape, dtype and element_size()",
        ) from error
    if not array.flags.writeable and np.lib.NumpyVersion(np.__version__) < "2.1.0":
        # Those versions call every imported capsule read-only, whatever its producer says.
        interface = dict(array.__array_interface__)
        if not array.flags.c_contiguous:
            raise _not_contiguous(pool)
        owner = (pool, array)
        return HostPool(
            owner,
            int(interface["data"][0]),
            array.shape,
            array.dtype.itemsize,
            dtype_name(array.dtype),
        )
    return _from_array(array, (pool, array))


def _is_dense(shape: Sequence[int], strides: Sequence[int], unit: int) -> bool:
    expected = unit
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _check(found: HostPool) -> None:
    pool = found.owner
    if not 0 < found.address <= _LARGEST_ADDRESS:
        raise _refused(
            pool, f"its address is {found.address}", "register it after it was allocated"
        )
    if len(found.shape) != 4:
        raise _refused(
            pool,
            f"its shape {found.shape} has {len(found.shape)} dimensions",
            "register the pool of the V1 manager: [blocks, layers, kv_factor, elements per block]",
        )
    if found.element_bytes <= 0 or min(found.shape) <= 0:
        raise _refused(pool, f"its shape {found.shape} is empty", "register a pool with pages")
    if found.total_bytes > _LARGEST_ADDRESS:
        raise _refused(
            pool, f"its shape {found.shape} exceeds the address space", "register the tensor itself"
        )
    of_type = dtype_bytes(found.dtype)
    if of_type is not None and of_type != found.element_bytes:
        raise _refused(
            pool,
            f"its elements have {found.element_bytes} bytes, but those of {found.dtype} have "
            f"{of_type}",
            "register the tensor itself, not a wrapper with another type",
        )
    stated = getattr(pool, "nbytes", None)
    if isinstance(stated, int) and stated != found.total_bytes:
        raise _refused(
            pool,
            f"it says that it has {stated} bytes, while shape {found.shape} and element size "
            f"{found.element_bytes} make {found.total_bytes}",
            "register the tensor itself, not a wrapper with another shape",
        )


def _refused(pool: Any, reason: str, remedy: str) -> KvConnectorConfigError:
    return KvConnectorConfigError(
        f"KV pool {type(pool).__name__} cannot be used: {reason}. Remedy: {remedy}"
    )


def _not_contiguous(pool: Any) -> KvConnectorConfigError:
    return _refused(
        pool,
        "it is not contiguous",
        "register the pool tensor of the KV cache manager itself, not a slice or a view of it",
    )


def _read_only(pool: Any) -> KvConnectorConfigError:
    return _refused(pool, "it is read-only, and loads write into it", "register writable memory")
