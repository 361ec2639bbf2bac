"""What the driver counted itself, and the comparison with what the connector says (I6, I7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mooncake_trtllm.simulator.violations import InvariantError

__all__ = ["CallbackTime", "Ledger"]

Stats = Mapping[str, int | float]

_REJECTIONS = ("rejected_checksum", "rejected_layout", "rejected_header", "rejected_size")
_SHORT_ORDERS = (
    "stage_short_missing",
    "stage_short_rejected",
    "stage_short_no_room",
    "stage_short_unavailable",
)
_SAVE_OUTCOMES = ("blocks_saved", "blocks_already_stored", "saves_dropped", "saves_failed")


@dataclass
class CallbackTime:
    """How often a callback ran and how long."""

    calls: int = 0
    seconds: float = 0.0
    longest_s: float = 0.0

    def add(self, seconds: float) -> None:
        """One more call."""
        self.calls += 1
        self.seconds += seconds
        self.longest_s = max(self.longest_s, seconds)


@dataclass
class Ledger:
    """One rank's count of everything that the connector was asked and promised."""

    page_bytes: int
    callbacks: dict[str, CallbackTime] = field(default_factory=dict)
    metadata_bytes_max: int = 0
    queries: int = 0
    blocks_promised: int = 0
    blocks_loaded: int = 0
    """Promised in steps whose load succeeded on this rank."""
    blocks_in_failed_loads: int = 0
    """Promised in steps whose load raised on this rank: some may have been loaded."""
    loads_failed: int = 0
    blocks_fresh: int = 0
    """Full prompt blocks that this instance computed and the connector was told of: to be saved."""
    blocks_savable: int = 0
    """All full blocks that it may save: also matched, loaded and generated ones."""
    silent_endings: int = 0
    """Requests that ended without `request_finished`, which the connector may still track."""

    def check_scheduler(self, stats: Stats) -> None:
        """I6 and I7 on the leader."""
        _expect("queries", _number(stats, "queries"), self.queries)
        bypassed = _number(stats, "queries_bypassed")
        if bypassed > self.queries:
            raise InvariantError("I7", f"queries_bypassed={bypassed} of {self.queries} queries")
        _expect("blocks_offered", _number(stats, "blocks_offered"), self.blocks_promised)
        missed = [name for name in stats if name.startswith("blocks_missed_")]
        if missed:
            wanted = self.blocks_promised + sum(_number(stats, name) for name in missed)
            _expect("blocks_looked_up", _number(stats, "blocks_looked_up"), wanted)
        tracked = _number(stats, "requests_tracked")
        if tracked > self.silent_endings:
            raise InvariantError(
                "I6",
                f"requests_tracked={tracked} after all requests ended, of which "
                f"{self.silent_endings} ended without request_finished",
            )
        held = _number(stats, "promises_held") if "promises_held" in stats else 0
        if held > self.silent_endings:
            raise InvariantError("I6", f"promises_held={held} after all requests ended")

    def _check_refusals(self, stats: Stats) -> None:
        """A block that is refused before it is promised raises nothing; at a load it does."""
        refused = sum(_number(stats, name) for name in ("loads_missing", "loads_unavailable"))
        rejected = sum(_number(stats, name) for name in _REJECTIONS)
        # Also by a fetch that came too late for any promise, which ends no order.
        fetches_ahead = any(_number(stats, name) for name in ("blocks_staged", *_SHORT_ORDERS))
        must_raise = refused if fetches_ahead else refused + rejected
        if self.loads_failed == 0 < must_raise or self.loads_failed > refused + rejected:
            raise InvariantError(
                "I7",
                f"{refused} blocks counted as missing or unavailable and {rejected} as rejected, "
                f"but {self.loads_failed} loads raised",
            )

    def check_worker(self, stats: Stats, *, expect_saves: bool) -> None:
        """I6 and I7 on a worker whose saves are drained."""
        queued = _number(stats, "save_queue_bytes")
        if queued:
            raise InvariantError("I6", f"save_queue_bytes={queued} after the drain")
        loaded = _number(stats, "blocks_loaded")
        most = self.blocks_loaded + self.blocks_in_failed_loads
        if not self.blocks_loaded <= loaded <= most:
            raise InvariantError(
                "I7",
                f"blocks_loaded={loaded}, the driver counted {_range(self.blocks_loaded, most)}",
            )
        _expect("bytes_loaded", _number(stats, "bytes_loaded"), loaded * self.page_bytes)
        self._check_refusals(stats)
        saved = sum(_number(stats, name) for name in _SAVE_OUTCOMES)
        least = self.blocks_fresh if expect_saves else 0
        if not least <= saved <= self.blocks_savable:
            raise InvariantError(
                "I7",
                f"{' + '.join(_SAVE_OUTCOMES)} = {saved}, "
                f"the driver counted {_range(least, self.blocks_savable)}",
            )
        written = _number(stats, "blocks_saved")
        _expect("bytes_saved", _number(stats, "bytes_saved"), written * self.page_bytes)


def _number(stats: Stats, name: str) -> int:
    value = stats.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvariantError("I7", f"stats()[{name!r}] is {value!r}, not a count")
    return value


def _expect(name: str, found: int, counted: int) -> None:
    if found != counted:
        raise InvariantError("I7", f"{name}={found}, the driver counted {counted}")


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"
