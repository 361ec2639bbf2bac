"""SIGTERM and SIGINT end a program by an exception, so that all it started is stopped."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

__all__ = ["Terminated", "ended_by_signals"]


class Terminated(BaseException):
    """SIGTERM, so that everything is stopped on the way out."""


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Inside the block the signals raise KeyboardInterrupt and Terminated, once."""
    previous = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _end(number: int, _frame: FrameType | None) -> None:
    # A second signal must not interrupt the clean-up that the first one began.
    for ignored in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ignored, signal.SIG_IGN)
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated
