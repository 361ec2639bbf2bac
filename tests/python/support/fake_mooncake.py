"""A stand-in for `mooncake.store` that answers as a test tells it."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest


class FakeStore:
    """`MooncakeDistributedStore` in memory. The class remembers what its objects were told."""

    objects: ClassVar[dict[bytes, bytes]] = {}
    setups: ClassVar[list[tuple[tuple[Any, ...], dict[str, Any]]]] = []
    calls: ClassVar[list[str]] = []
    setup_answer: ClassVar[Any] = 0
    """Per method: called with the plain answer, gives the answer that the client sees."""
    answers: ClassVar[dict[str, Callable[[Any], Any]]] = {}

    @classmethod
    def reset(cls) -> None:
        cls.objects, cls.setups, cls.calls, cls.setup_answer, cls.answers = {}, [], [], 0, {}

    def _answer(self, method: str, plain: Any) -> Any:
        type(self).calls.append(method)
        assert "close" not in self.calls[:-1], f"{method} after close"
        altered = self.answers.get(method)
        return altered(plain) if altered else plain

    def setup(self, *arguments: Any, **keywords: Any) -> Any:
        self.setups.append((arguments, keywords))
        if isinstance(self.setup_answer, Exception):
            raise self.setup_answer
        return self.setup_answer

    def batch_is_exist(self, keys: list[bytes]) -> Any:
        return self._answer("batch_is_exist", [int(key in self.objects) for key in keys])

    def batch_put_from(self, keys: list[bytes], pointers: list[int], sizes: list[int]) -> Any:
        for key, pointer, size in zip(keys, pointers, sizes, strict=True):
            self.objects.setdefault(key, ctypes.string_at(pointer, size))
        return self._answer("batch_put_from", [0] * len(keys))

    def batch_get_into(self, keys: list[bytes], pointers: list[int], sizes: list[int]) -> Any:
        codes = [self._read(*item) for item in zip(keys, pointers, sizes, strict=True)]
        return self._answer("batch_get_into", codes)

    def _read(self, key: bytes, pointer: int, size: int) -> int:
        value = self.objects.get(key)
        if value is None:
            return -704
        if len(value) > size:
            return -600
        ctypes.memmove(pointer, value, len(value))
        return len(value)

    def batch_remove(self, keys: list[bytes], force: bool) -> Any:
        assert force is True
        codes = [0 if self.objects.pop(key, None) is not None else -704 for key in keys]
        return self._answer("batch_remove", codes)

    def register_buffer(self, pointer: int, size: int) -> Any:
        return self._answer("register_buffer", 0)

    def unregister_buffer(self, pointer: int) -> Any:
        return self._answer("unregister_buffer", 0)

    def close(self) -> Any:
        return self._answer("close", 0)


def install(monkeypatch: pytest.MonkeyPatch, **contents: Any) -> types.ModuleType:
    """Put a package `mooncake` with a module `store` of these contents before the real one."""
    package = types.ModuleType("mooncake")
    package.__path__ = []
    module = types.ModuleType("mooncake.store")
    for name, value in contents.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, "mooncake", package)
    monkeypatch.setitem(sys.modules, "mooncake.store", module)
    return module


@contextmanager
def listening(host: str = "127.0.0.1") -> Iterator[str]:
    """A master's port that takes connections and never says a word; yields its address."""
    with socket.create_server((host, 0)) as server:
        yield f"{host}:{server.getsockname()[1]}"


def free_address() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def forget_defaults(monkeypatch: pytest.MonkeyPatch, names: Sequence[str]) -> None:
    """Unset variables now, and again after the test, whatever was set in between."""
    for name in names:
        monkeypatch.setenv(name, "")  # remembers that it was unset, or its value
        del os.environ[name]
