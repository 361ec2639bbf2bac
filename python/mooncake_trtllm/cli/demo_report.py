"""The rows of the demo."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mooncake_trtllm.cli.output import human_bytes

__all__ = ["Step", "text"]

_COLUMNS = (
    ("step", 11),
    ("instance", 9),
    ("reusable", 8),
    ("reused", 7),
    ("verified", 8),
    ("rejected", 8),
    ("errors", 6),
    ("loaded", 10),
    ("saved", 10),
    ("", 3),
)


@dataclass
class Step:
    """What one step measured, and what is wrong with it."""

    name: str
    instance: str
    pids: list[int]
    blocks_matchable: int = 0
    blocks_hit: int = 0
    blocks_verified: int = 0
    blocks_rejected: int = 0
    bytes_loaded: int = 0
    bytes_saved: int = 0
    errors: int = 0
    """Attempts of requests that failed closed."""
    verified_after_healing: int = 0
    """Of a second look at the same prompts, not part of `blocks_verified`."""
    seconds: float = 0.0
    more: dict[str, Any] = field(default_factory=dict)
    """Figures that only this step has."""
    faults: list[str] = field(default_factory=list)

    def expect(self, what: str, found: object, wanted: object) -> None:
        """Notes a fault when a measured figure is not what it must be."""
        if found != wanted:
            self.faults.append(f"{what} is {found}, must be {wanted}")

    def row(self) -> dict[str, Any]:
        """As in `demo/1`."""
        return {
            "name": self.name,
            "instance": self.instance,
            "pids": self.pids,
            "blocks_matchable": self.blocks_matchable,
            "blocks_hit": self.blocks_hit,
            "blocks_verified": self.blocks_verified,
            "blocks_rejected": self.blocks_rejected,
            "bytes_loaded": self.bytes_loaded,
            "bytes_saved": self.bytes_saved,
            "errors": self.errors,
            "seconds": round(self.seconds, 3),
            **self.more,
            "ok": not self.faults,
            "faults": self.faults,
        }


def text(steps: list[Step], *, heading: bool) -> str:
    """A table for people; blocks are counted over whole prompts, bytes over all ranks."""
    lines = []
    if heading:
        lines.append("  ".join(f"{name:<{width}}" for name, width in _COLUMNS).rstrip())
    for step in steps:
        cells = (
            step.name,
            step.instance,
            step.blocks_matchable,
            step.blocks_hit,
            step.blocks_verified,
            step.blocks_rejected,
            step.errors,
            human_bytes(step.bytes_loaded),
            human_bytes(step.bytes_saved),
            "BAD" if step.faults else "ok",
        )
        row = zip(cells, _COLUMNS, strict=True)
        lines.append("  ".join(f"{cell!s:<{width}}" for cell, (_, width) in row).rstrip())
        note = step.more.get("note")
        if note:
            lines.append(f"             {note}")
    return "\n".join(lines) + "\n"
