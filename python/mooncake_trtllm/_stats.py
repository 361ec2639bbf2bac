"""Names, kinds and meanings of all figures. The core's tables are the source for its own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

from mooncake_trtllm import _native

__all__ = ["BYPASSES", "NO_BOUND", "Stat", "figures", "no_figures", "numbers_of", "stat_table"]

BYPASSES = {
    "no_pool": "Queries before a worker of the instance has registered its KV pool, or where no "
    "scheduler can be made; the log tells.",
    "disabled": "Queries while the file that MC_DISABLE_FILE names is there.",
    "content": "Queries whose content is not identified: LoRA, media, embeddings, ...",
    "error": "Queries that failed; each is logged.",
}
"""Why requests are neither looked up nor saved."""

NO_BOUND = "+Inf"
"""Of the last bucket; as Prometheus writes it."""

_NANOSECONDS = "_nanoseconds"


class Stat(NamedTuple):
    """One figure. Those of a family differ by their reason alone."""

    family: str
    reason: str
    kind: str
    """counter, gauge or histogram."""
    help: str

    @property
    def name(self) -> str:
        """The name in stats() and metrics()."""
        return f"{self.family}_{self.reason}" if self.reason else self.family


@cache
def stat_table(role: str) -> tuple[Stat, ...]:
    """Return all figures of a scheduler or a worker."""
    tables = {
        owner: [Stat(*row)._replace(family=_in_seconds(row[0])) for row in rows]
        for owner, rows in _native.stat_table().items()
    }
    if role == "scheduler":
        bypasses = [Stat("queries_bypassed", *row) for row in _bypass_rows()]
        return (*tables["scheduler"], *bypasses)
    return (*tables["worker"], *tables["store"])


def figures(core: _native.Scheduler | _native.Worker) -> dict[str, Any]:
    """Return what the core counts: numbers by name, times in seconds, and histograms.

    A histogram is `{"count": n, "sum_seconds": s, "buckets": [(bound, count up to it), ...]}`, its
    last bound "+Inf": JSON has no infinite number.
    """
    numbers = {
        _in_seconds(name): value / 1e9 if name.endswith(_NANOSECONDS) else value
        for name, value in core.stats().items()
    }
    return {**numbers, **{name: _histogram(*value) for name, value in core.latencies().items()}}


def no_figures(role: str) -> dict[str, Any]:
    """Return what one that has not begun would count."""
    counts = [0] * (len(_native.latency_bounds()) + 1)
    return {
        stat.name: _histogram(counts, 0.0) if stat.kind == "histogram" else 0
        for stat in stat_table(role)
    }


def _histogram(counts: list[int], seconds: float) -> dict[str, Any]:
    buckets = zip((*_native.latency_bounds(), NO_BOUND), accumulate(counts), strict=True)
    return {"count": sum(counts), "sum_seconds": seconds, "buckets": list(buckets)}


def numbers_of(metrics: Mapping[str, Any]) -> dict[str, int | float]:
    """Return what is no histogram."""
    return {name: value for name, value in metrics.items() if not isinstance(value, dict)}


def _in_seconds(name: str) -> str:
    return name.removesuffix(_NANOSECONDS) + "_seconds" if name.endswith(_NANOSECONDS) else name


def _bypass_rows() -> list[tuple[str, str, str]]:
    return [(reason, "counter", text) for reason, text in BYPASSES.items()]
