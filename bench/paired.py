"""Interleaved pairs: the only way to compare two things on a machine with noisy neighbours.

Each pair measures both sides back to back, in alternating order, so that drift of the machine hits
both alike. A sample is the ratio inside one pair; the result is the median of the samples.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Entry", "Pairs", "measure_pairs", "throughput_entry"]


@dataclass
class Pairs:
    """Seconds of both sides, one entry per pair."""

    ours: list[float] = field(default_factory=list)
    baseline: list[float] = field(default_factory=list)

    def speed_ratios(self) -> list[float]:
        """Our throughput over the baseline's, pair by pair: both move the same bytes."""
        return [raw / own for own, raw in zip(self.ours, self.baseline, strict=True)]


@dataclass
class Entry:
    """One entry of results.json. `aim`: a bar that is reported and does not fail the run."""

    value: float
    op: str
    limit: float
    samples: list[float]
    baseline: dict[str, object]
    note: str
    aim: bool
    digest: str
    unit: str = "ratio"

    @property
    def passed(self) -> bool:
        """Whether the value is on the right side of its limit."""
        return self.value <= self.limit if self.op == "<=" else self.value >= self.limit

    def to_json(self) -> dict[str, object]:
        """Return the fields in the documented order."""
        return {
            "value": round(self.value, 4),
            "unit": self.unit,
            "op": self.op,
            "limit": self.limit,
            "pass": self.passed,
            "aim": self.aim,
            "samples": [round(sample, 4) for sample in self.samples],
            "baseline": self.baseline,
            "digest": self.digest,
            "note": self.note,
        }


def measure_pairs(
    pairs: int,
    warm_up: int,
    ours: Callable[[int], Callable[[], None]],
    baseline: Callable[[int], Callable[[], None]],
    after: Callable[[int], None],
) -> Pairs:
    """Run `warm_up` unrecorded and `pairs` recorded pairs.

    Both sides are called with the number of the pair to prepare it and return what is timed;
    `after` is called, untimed, once both are done. Preparation never falls into a timed part.
    """
    result = Pairs()
    for number in range(warm_up + pairs):
        own_action, raw_action = ours(number), baseline(number)
        if number % 2:
            own, raw = _seconds(own_action), _seconds(raw_action)
        else:
            raw, own = _seconds(raw_action), _seconds(own_action)
        after(number)
        if number >= warm_up:
            result.ours.append(own)
            result.baseline.append(raw)
    return result


def throughput_entry(
    pairs: Pairs,
    *,
    limit: float,
    bytes_per_run: int,
    baseline_name: str,
    digest: str,
    note: str,
) -> Entry:
    """Summarise pairs of equal bytes as an entry whose bar is an aim."""
    samples = pairs.speed_ratios()
    own, raw = (
        bytes_per_run / statistics.median(side) / 1e9 for side in (pairs.ours, pairs.baseline)
    )
    value = statistics.median(samples)
    text = f"{own:.3f} GB/s against {raw:.3f} GB/s. {note}"
    if value < limit:
        text = f"Below the aim of {limit}. {text}"
    return Entry(
        value=value,
        op=">=",
        limit=limit,
        samples=samples,
        baseline={"name": baseline_name, "value": round(raw, 4), "unit": "GB/s"},
        note=text,
        aim=True,
        digest=digest,
    )


def _seconds(action: Callable[[], None]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin
