"""Names of test cases."""

from __future__ import annotations

import re

__all__ = ["readable"]


def readable(value: object) -> str:
    """Return what a value looks like, without addresses: alike in every process that collects."""
    return re.sub(r" at 0x[0-9a-f]+", "", ascii(value))
