"""A list of checks, as JSON (`checks/1`) and as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from mooncake_trtllm.cli.exits import BROKEN, GOOD, exit_code

__all__ = ["Check", "Checks"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    exit_code: int = BROKEN
    """With which the verb ends if this failed."""

    @classmethod
    def of_error(cls, name: str, error: Exception) -> Check:
        """What failed, with the remedy that the message of such errors ends with."""
        detail, remedy = str(error), "report this with the output of `selfcheck --json`"
        for mark in (". Remedy: ", "; remedy: "):
            if mark in detail:
                detail, remedy = detail.split(mark, 1)
                break
        return cls(name, False, detail, remedy, exit_code(error) or BROKEN)


class Checks:
    """All of them, in order."""

    def __init__(self) -> None:
        self._checks: list[Check] = []

    def add(self, check: Check) -> None:
        """One more; a remedy is shown only where there is something to mend."""
        self._checks.append(replace(check, remedy="") if check.ok else check)

    def expect(self, name: str, found: int, wanted: int, what: str) -> None:
        """A count that must be exactly so."""
        good = found == wanted
        detail = f"{found} {what}" if good else f"{found} {what}, must be {wanted}"
        remedy = "" if good else "report this with the output of `selfcheck --json`"
        self.add(Check(name, good, detail, remedy))

    @property
    def ok(self) -> bool:
        """Whether none failed."""
        return all(check.ok for check in self._checks)

    @property
    def exit_code(self) -> int:
        """That of the first one that failed."""
        return next((check.exit_code for check in self._checks if not check.ok), GOOD)

    def content(self) -> dict[str, Any]:
        """`checks/1`."""
        return {
            "schema": "checks/1",
            "ok": self.ok,
            "checks": [
                {name: value for name, value in asdict(check).items() if name != "exit_code"}
                for check in self._checks
            ],
        }

    def text(self) -> str:
        """For people."""
        lines = []
        for check in self._checks:
            lines.append(f"{'ok  ' if check.ok else 'FAIL'} {check.name:<18} {check.detail}")
            if not check.ok and check.remedy:
                lines.append(f"     {'':<18} remedy: {check.remedy}")
        failed = sum(not check.ok for check in self._checks)
        lines.append(f"{len(self._checks)} checks, {failed} failed")
        return "\n".join(lines) + "\n"
