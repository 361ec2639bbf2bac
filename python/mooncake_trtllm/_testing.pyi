"""Stores that a test holds up or lets fail. Built for tests only."""

from mooncake_trtllm._native import Store

class GatedStore(Store):
    def __init__(self, inner: Store) -> None: ...
    def close_gate(self, *, before_reply: bool = False) -> None:
        """Calls wait from now on."""

    def open_gate(self) -> None: ...
    def wait_for_waiting(self, count: int) -> bool: ...
    def waiting(self) -> int: ...
    def count(self, op: str) -> int:
        """Calls so far of exists, put, get or remove."""

    def answer_with(self, reaction: str) -> None:
        """Answers instead of the inner store; ok ends it."""

    def registered(self) -> int: ...
