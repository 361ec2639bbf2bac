"""Errors of the connector. Each message names the value or block, the cause and the remedy.

They pickle, since a runtime may carry them from a rank's process to another one.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "KvConnectorConfigError",
    "KvConnectorError",
    "KvConnectorLoadError",
    "KvConnectorStoreError",
]


class KvConnectorError(RuntimeError):
    """Base of all errors of the connector.

    `request_ids` and `keys` name the requests and the stored objects concerned, if any.
    """

    def __init__(
        self, message: str, request_ids: Iterable[int] = (), keys: Iterable[str] = ()
    ) -> None:
        super().__init__(message)
        self.request_ids: list[int] = list(request_ids)
        self.keys: list[str] = list(keys)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.request_ids, self.keys)


class KvConnectorConfigError(KvConnectorError):
    """Wrong usage or configuration: start-up cannot go on, and trying again does not help."""


class KvConnectorStoreError(KvConnectorError):
    """The store cannot be opened at start-up."""


class KvConnectorLoadError(KvConnectorError):
    """A block that had been promised to the runtime is missing or was rejected.

    Its tokens already count as computed, so the step must not run. The requests in `request_ids`
    fail; all other loads of the step are in place. A retry recomputes the block and stores it anew.
    """
