"""Exit codes, and which error leads to which."""

from __future__ import annotations

from mooncake_trtllm.errors import KvConnectorConfigError, KvConnectorStoreError
from mooncake_trtllm.local_store import LocalStoreError, WheelMissingError
from mooncake_trtllm.simulator import RankError, SimulationError
from mooncake_trtllm.simulator.workloads import TraceFormatError

__all__ = [
    "BROKEN",
    "GOOD",
    "UNREACHABLE",
    "USAGE",
    "RunError",
    "UsageError",
    "exit_code",
]

GOOD = 0
BROKEN = 1
USAGE = 2
UNREACHABLE = 3

_BY_KIND = {"config": USAGE, "store": UNREACHABLE}


class UsageError(Exception):
    """Wrong usage; the message names the value, the reason and the remedy."""


_USAGE_ERRORS = (UsageError, TraceFormatError, WheelMissingError, KvConnectorConfigError)


class RunError(Exception):
    """A run without a result, and the exit code that says why."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def exit_code(error: BaseException) -> int | None:
    """The code that stands for an error that users may see; None: a defect of ours."""
    if isinstance(error, RunError):
        return error.code
    if isinstance(error, _USAGE_ERRORS):
        return USAGE
    if isinstance(error, (LocalStoreError, KvConnectorStoreError)):
        return UNREACHABLE
    if isinstance(error, RankError):
        return _BY_KIND.get(error.kind, BROKEN)
    return BROKEN if isinstance(error, SimulationError) else None
