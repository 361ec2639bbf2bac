"""What this package knows of Mooncake's wheel, in one place. Imports nothing of it.

The extension module asks here too, before it imports the wheel.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping

__all__ = [
    "CLIENT_ENVIRONMENT",
    "INSTALL",
    "installed_release",
    "quieten",
    "set_missing_environment",
    "wheel_version",
]

_VARIANTS = ("-non-cuda", "", "-cuda13", "-efa", "-npu", "-musa", "-rocm")
"""All have the same contents, and own the same package."""

INSTALL = "pip install mooncake-transfer-engine-non-cuda==0.3.13.post1"
"""The release that this package is tested with; other variants of it will do."""

CLIENT_ENVIRONMENT: Mapping[str, str] = {
    # Without the pool each buffer costs a TCP connection.
    "MC_TCP_ENABLE_CONNECTION_POOL": "1",
    # How long a storage process may hang, how long a master: 30 s by default.
    "MC_TCP_STATUS_TIMEOUT_SEC": "3",
    "MC_RPC_TIMEOUT_MS": "2000",
    # setup() holds the GIL while it tries again, 20 times by default.
    "MC_STORE_CLIENT_SETUP_RETRIES": "1",
    "MC_LOG_LEVEL": "ERROR",
}
"""What every process that uses the wheel is given where the user has not chosen."""


def installed_release() -> str:
    """Name and version of the wheel that is installed, or `unknown release`."""
    found = _installed()
    return " ".join(found) if found else "unknown release"


def wheel_version() -> str | None:
    """The version of the installed wheel, or None."""
    found = _installed()
    return found[1] if found else None


_set_early: dict[str, str] = {}


def quieten() -> None:
    """Sets MC_LOG_LEVEL where it is unset. Only has an effect before the wheel is loaded."""
    if "MC_LOG_LEVEL" not in os.environ:
        _set_early["MC_LOG_LEVEL"] = os.environ["MC_LOG_LEVEL"] = CLIENT_ENVIRONMENT["MC_LOG_LEVEL"]


def set_missing_environment() -> str:
    """Sets CLIENT_ENVIRONMENT where it is unset; returns what was set, as "NAME=value ..."."""
    missing = {name: value for name, value in CLIENT_ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(missing)
    missing |= _set_early
    _set_early.clear()
    return " ".join(f"{name}={value}" for name, value in missing.items())


def _installed() -> tuple[str, str] | None:
    for variant in _VARIANTS:
        name = f"mooncake-transfer-engine{variant}"
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
