"""Which variables a program of ours has set, so that nobody takes them for the user's.

A verb hands settings to the ranks and verbs that it starts in their environment. What tells
settings in force would call them "environment", and a user looks in vain for where that is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mooncake_trtllm import _native

__all__ = ["MARK", "SET_FOR_THIS_RUN", "described", "marked", "run_sets"]

MARK = "KVC_SET_FOR_THIS_RUN"
"""The variable that lists them."""
SET_FOR_THIS_RUN = "set for this run"


def marked(settings: Mapping[str, str]) -> dict[str, str]:
    """`settings`, and the mark that a program of ours sets them (and what the caller inherited)."""
    return {**settings, MARK: " ".join(sorted({*run_sets(), *settings}))}


def run_sets() -> frozenset[str]:
    """Names of variables of this process that a program of ours has set."""
    return frozenset(os.environ.get(MARK, "").split())


def described(core: _native.Settings) -> list[tuple[str, str, str]]:
    """Name, value and source of each setting."""
    ours = run_sets()
    return [
        (name, value, SET_FOR_THIS_RUN if source == "environment" and name in ours else source)
        for name, value, source in core.describe()
    ]
