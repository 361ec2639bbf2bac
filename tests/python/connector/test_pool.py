"""KV memory of every kind that offers its bytes, and what is refused."""

from __future__ import annotations

import ctypes
import mmap
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.engine import HostTensor

from mooncake_trtllm import KvConnectorConfigError
from mooncake_trtllm._pool import host_pool

SHAPE = (4, 3, 2, 64)


def test_a_tensor() -> None:
    tensor = HostTensor(SHAPE, "bfloat16")
    found = host_pool(tensor)
    assert (found.address, found.shape, found.element_bytes) == (tensor.data_ptr(), SHAPE, 2)
    assert found.dtype == "bfloat16"
    assert found.owner is tensor
    assert found.total_bytes == tensor.bytes.size


@pytest.mark.parametrize(
    ("torch_name", "name"),
    [
        ("float16", "float16"),
        ("bfloat16", "bfloat16"),
        ("float8_e4m3fn", "fp8_e4m3"),
        ("int8", "int8"),
        ("uint8", "uint8"),
    ],
)
def test_types_have_one_spelling(torch_name: str, name: str) -> None:
    assert host_pool(HostTensor(SHAPE, torch_name)).dtype == name


def test_an_array() -> None:
    array = np.zeros(SHAPE, np.float16)
    found = host_pool(array)
    assert (found.address, found.shape, found.dtype) == (array.ctypes.data, SHAPE, "float16")


def test_an_object_with_the_array_interface_alone() -> None:
    array = np.zeros(SHAPE, np.uint8)
    found = host_pool(SimpleNamespace(__array_interface__=array.__array_interface__))
    assert (found.address, found.element_bytes, found.dtype) == (array.ctypes.data, 1, "uint8")


def test_a_buffer() -> None:
    memory = mmap.mmap(-1, 4 * 3 * 2 * 64)
    view = memoryview(memory).cast("B", SHAPE)
    found = host_pool(view)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert (found.address, found.shape, found.dtype) == (address, SHAPE, "uint8")


class OnlyDlpack:
    """An object that offers nothing but DLPack."""

    def __init__(self, array: np.ndarray[Any, Any], device: tuple[int, int] = (1, 0)) -> None:
        self._array, self._device = array, device

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def test_dlpack() -> None:
    array = np.zeros(SHAPE, np.float16)
    found = host_pool(OnlyDlpack(array))
    assert (found.address, found.shape, found.dtype) == (array.ctypes.data, SHAPE, "float16")


def tensor_with(**changes: Any) -> Any:
    tensor = HostTensor(SHAPE, "float16")
    for name, value in changes.items():
        setattr(tensor, name, value)
    return tensor


def fails() -> Any:
    raise RuntimeError("injected")


def read_only() -> Any:
    array = np.zeros(SHAPE, np.float16)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        (tensor_with(device=SimpleNamespace(type="cuda", index=0)), ["cuda memory", "host memory"]),
        (tensor_with(device="cuda:1"), ["cuda memory"]),
        (tensor_with(__cuda_array_interface__={}), ["cuda memory"]),
        (OnlyDlpack(np.zeros(SHAPE, np.float16), (2, 0)), ["DLPack device 2"]),
        (tensor_with(is_contiguous=lambda: False), ["not contiguous"]),
        (tensor_with(is_contiguous=None, stride=lambda: (400, 128, 64, 1)), ["not contiguous"]),
        (np.zeros((4, 3, 2, 128), np.float16)[..., ::2], ["not contiguous"]),
        (np.zeros((8, 3, 2, 64), np.float16)[::2], ["not contiguous"]),
        (memoryview(bytearray(64))[::2], ["not contiguous"]),
        (read_only(), ["read-only"]),
        (memoryview(bytes(64)), ["read-only"]),
        (tensor_with(shape=(4, 3, 128)), ["3 dimensions", "[blocks, layers"]),
        (tensor_with(shape=(0, 3, 2, 64)), ["empty"]),
        (tensor_with(data_ptr=lambda: 0), ["address is 0"]),
        (tensor_with(nbytes=17), ["17 bytes"]),
        (object(), ["neither data_ptr()"]),
        ([1, 2, 3], ["neither data_ptr()"]),
        (None, ["neither data_ptr()"]),
        # What no runtime says, and what must not end as an access beyond the pool.
        (tensor_with(shape=None), ["cannot be read"]),
        (tensor_with(shape="abcd"), ["cannot be read"]),
        (tensor_with(shape=(4.5, 3, 2, 64)), ["cannot be read"]),
        (tensor_with(shape=(-4, 3, 2, 64)), ["empty"]),
        (tensor_with(shape=(1 << 70, 3, 2, 64)), ["address space"]),
        (tensor_with(data_ptr=fails), ["injected"]),
        (tensor_with(data_ptr=1234), ["cannot be read"]),
        (tensor_with(data_ptr=lambda: None), ["cannot be read"]),
        (tensor_with(data_ptr=lambda: -8), ["address is -8"]),
        (tensor_with(data_ptr=lambda: 1 << 65), ["address is"]),
        (tensor_with(dtype=None), ["dtype is None"]),
        (tensor_with(element_size=lambda: 0), ["empty"]),
        (tensor_with(element_size=lambda: None), ["cannot be read"]),
        (tensor_with(element_size=lambda: 3), ["3 bytes", "float16 have 2"]),
        (tensor_with(is_contiguous=fails), ["injected"]),
        (tensor_with(is_contiguous=None, stride=lambda: None), ["cannot be read"]),
        (tensor_with(is_contiguous=None, stride=lambda: (64, 1)), ["cannot be read"]),
        (np.zeros(SHAPE, ">f2"), [">f2", "byte order"]),
        (np.zeros(SHAPE, object), ["object", "no numbers"]),
        (np.zeros(SHAPE, "M8[s]"), ["datetime64", "no numbers"]),
        (np.zeros(SHAPE, [("k", "<f2"), ("v", "<f2")]), ["no numbers"]),
    ],
)
def test_what_is_refused(pool: Any, words: list[str]) -> None:
    with pytest.raises(KvConnectorConfigError) as caught:
        host_pool(pool)
    message = str(caught.value)
    assert [word for word in [*words, "Remedy"] if word not in message] == []
