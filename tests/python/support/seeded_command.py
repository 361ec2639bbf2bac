"""The command line of runs that a seed replays."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["seeded_run"]


def seeded_run(doc: str | None, run: Callable[..., Any], *, requests: int, tp: int) -> int:
    """Run in a folder of its own and print the outcome; 1 if something is broken."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=requests)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000_007)
    parser.add_argument("--tp", type=int, default=tp)
    parser.add_argument("--promise", choices=("staged", "leased"), default="staged")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvc-run-") as folder:
        outcome = run(
            Path(folder),
            requests=options.requests,
            seed=options.seed,
            tp=options.tp,
            promise=options.promise,
        )
    print(outcome.text(), end="", flush=True)
    return 1 if outcome.broken else 0
