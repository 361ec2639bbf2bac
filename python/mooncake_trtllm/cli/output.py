"""What a verb prints: one JSON object, or text; progress on standard error at a terminal only."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

__all__ = ["Progress", "human_bytes", "print_json", "rounded"]

_BAR = 30
_EVERY_S = 0.1


def print_json(content: Mapping[str, Any]) -> None:
    """Exactly one object on standard output."""
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


def rounded(value: float | None, digits: int = 4) -> float | None:
    """A ratio or a rate, short enough to read; None stays unknown."""
    return None if value is None else round(value, digits)


def human_bytes(count: float) -> str:
    """For people: 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


class Progress:
    """A bar on standard error; silent where that is no terminal."""

    def __init__(self, label: str, total: int) -> None:
        self._label = label
        self._total = max(total, 1)
        self._shown_at = 0.0
        self._on = sys.stderr.isatty()

    def show(self, done: int) -> None:
        """So many of the total are done."""
        now = time.monotonic()
        if self._on and (done >= self._total or now - self._shown_at > _EVERY_S):
            self._shown_at = now
            filled = _BAR * done // self._total
            bar = "#" * filled + "." * (_BAR - filled)
            sys.stderr.write(f"\r{self._label} [{bar}] {done}/{self._total}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Takes the bar away."""
        if self._on:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
