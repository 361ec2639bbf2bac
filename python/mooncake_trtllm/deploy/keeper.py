"""The process that keeps a store up: `up` starts it and ends, `down` ends it.

    python -m mooncake_trtllm.deploy.keeper '{"folder": ..., "lock": 5, "ready": 6, "store": {...}}'

It holds the lock of the run folder, so that the lock says whether a store is up. Master and storage
are its children and die with it, whatever ends it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from mooncake_trtllm.cli.exits import GOOD, UNREACHABLE
from mooncake_trtllm.cli.signals import Terminated, ended_by_signals
from mooncake_trtllm.deploy.identity import ProcessIdentity
from mooncake_trtllm.deploy.run_folder import Record, RunFolder
from mooncake_trtllm.local_store import LocalStore, LocalStoreError, StorePorts

__all__ = ["main"]


def main(argument: str) -> int:
    """Keeps the store until a signal comes."""
    order = json.loads(argument)
    folder = RunFolder(Path(order["folder"]))
    try:
        with ended_by_signals(), _store(order) as store:
            try:
                folder.write(_record(store))
                _tell(order["ready"], "ready")
                while True:
                    signal.pause()
            finally:
                folder.forget()
    except LocalStoreError as error:
        _tell(order["ready"], str(error))
        return UNREACHABLE
    except (Terminated, KeyboardInterrupt):
        return GOOD


def _store(order: dict[str, Any]) -> LocalStore:
    ports = StorePorts(**order["store"].pop("ports"))
    return LocalStore(ports=ports, log_folder=Path(order["folder"]), **order["store"])


def _record(store: LocalStore) -> Record:
    return Record(
        ProcessIdentity.of(os.getpid()),
        ProcessIdentity.of(store.master_pid),
        ProcessIdentity.of(store.storage_pid),
        store.version,
        store.admin_url,
        store.segment_bytes,
        store.client_environment(),
    )


def _tell(descriptor: int, text: str) -> None:
    os.write(descriptor, text.encode()[:4096])
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
