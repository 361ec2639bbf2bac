"""How long other threads were kept from running."""

from __future__ import annotations

import threading
import time
from types import TracebackType

_PERIOD_S = 0.001


class Ticker:
    """A thread that wants to run every millisecond, as a streaming server's would."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.longest_gap_s = 0.0
        self.ticks = 0

    def _run(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(_PERIOD_S):
            now = time.monotonic()
            self.longest_gap_s = max(self.longest_gap_s, now - last)
            self.ticks += 1
            last = now

    def __enter__(self) -> Ticker:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
