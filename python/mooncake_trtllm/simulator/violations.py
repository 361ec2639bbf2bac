"""What can go wrong in a simulation, each kind with a name."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "INVARIANTS",
    "CollectiveError",
    "InvariantError",
    "RankError",
    "RankFailure",
    "SimulationError",
]

INVARIANTS = {
    "I1": "right bytes: what was promised holds exactly the oracle's bytes before a layer reads it",
    "I2": "counts: a promise is whole blocks from an aligned match and leaves one token to compute",
    "I3": "completions: only ids that were given, each once per direction",
    "I4": "lifetime: no page is touched after it was released, nothing outside the pool ever",
    "I5": "time: every callback returns within its bound",
    "I6": "balance: after a drain queues, records and pins are back at their start values",
    "I7": "truth: counters equal what the driver counted itself",
    "I8": "total callbacks: no callback raises, except a failed load in leased mode",
}


class SimulationError(Exception):
    """The simulation cannot go on; the message says why."""


class InvariantError(SimulationError):
    """The connector broke one of I1 to I8."""

    def __init__(self, invariant: str, detail: str, rank: int | None = None) -> None:
        if invariant not in INVARIANTS:
            raise ValueError(f"unknown invariant {invariant!r}")
        self.invariant = invariant
        self.detail = detail
        self.rank = rank
        super().__init__(invariant, detail, rank)

    def __str__(self) -> str:
        where = "" if self.rank is None else f" on rank {self.rank}"
        return f"{self.invariant} broken{where}: {self.detail} ({INVARIANTS[self.invariant]})"


class CollectiveError(SimulationError):
    """A collective cannot complete, because another rank failed or never came."""


@dataclass(frozen=True)
class RankFailure:
    """Why one rank ended, in a form that crosses process borders."""

    rank: int
    kind: str
    """invariant, config, store, connector, collective or crash."""
    type_name: str
    message: str
    traceback: str = ""
    invariant: str = ""


class RankError(SimulationError):
    """A rank ended with an error that is no broken invariant, or died, or hung."""

    def __init__(self, failure: RankFailure) -> None:
        self.failure = failure
        self.kind = failure.kind
        super().__init__(failure)

    def __str__(self) -> str:
        return f"rank {self.failure.rank}: {self.failure.type_name}: {self.failure.message}"


def describe_failure(rank: int, error: BaseException) -> RankFailure:
    """Classifies `error` by the names of its classes, so that no connector must be imported."""
    import traceback

    names = {cls.__name__ for cls in type(error).__mro__}
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    if isinstance(error, InvariantError):
        return RankFailure(rank, "invariant", "InvariantError", error.detail, text, error.invariant)
    if isinstance(error, CollectiveError):
        kind = "collective"
    elif "KvConnectorConfigError" in names or isinstance(error, ImportError):
        kind = "config"
    elif "KvConnectorStoreError" in names:
        kind = "store"
    elif "KvConnectorError" in names:
        kind = "connector"
    else:
        kind = "crash"
    return RankFailure(rank, kind, type(error).__name__, str(error), text)


def to_exception(failure: RankFailure) -> SimulationError:
    """The exception that stands for `failure` in the caller's thread."""
    if failure.kind == "invariant":
        return InvariantError(failure.invariant, failure.message, failure.rank)
    return RankError(failure)


def is_connector_error(error: BaseException) -> bool:
    """Whether `error` is a KvConnectorError of whatever connector is driven."""
    return any(cls.__name__ == "KvConnectorError" for cls in type(error).__mro__)
