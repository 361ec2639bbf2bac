"""The private store starts, serves, expires a dead storage process and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import alive, wait_until_gone

from mooncake_trtllm import child_guard, local_store
from mooncake_trtllm.local_store import (
    LocalStore,
    LocalStoreError,
    StorePorts,
    WheelMissingError,
)

ROOT = Path(__file__).parents[2]


def test_without_the_wheel_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(WheelMissingError, match="pip install mooncake-transfer-engine"):
        LocalStore().start()


def test_a_segment_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="segment_bytes=4096"):
        LocalStore(segment_bytes=4096)


def test_unknown_metadata_and_foreign_addresses_are_refused() -> None:
    with pytest.raises(ValueError, match="metadata='etcd'"):
        LocalStore(metadata="etcd")
    # 192.0.2.0/24 is for documentation: no machine has an address of it.
    with pytest.raises(LocalStoreError, match=r"cannot listen on 192\.0\.2\.1"):
        LocalStore(host="192.0.2.1")._pick_ports()


def pids_of_who_kills_himself(program: str) -> list[int]:
    """Run a program that prints the ids of its children, then dies by SIGKILL."""
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == -signal.SIGKILL
    return [int(text) for text in result.stdout.split()]


def test_a_guarded_child_dies_with_its_parent() -> None:
    program = (
        "import os, sys\n"
        "from mooncake_trtllm import child_guard\n"
        "child = child_guard.spawn([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    pids = pids_of_who_kills_himself(program)
    assert len(pids) == 1
    assert wait_until_gone(pids)


def test_a_child_that_ignores_sigterm_is_killed() -> None:
    reader, writer = os.pipe()
    program = "import os, signal, sys\nsignal.signal(15, signal.SIG_IGN)\n"
    program += f"os.write({writer}, b'!')\nsignal.pause()\n"
    child = child_guard.spawn([sys.executable, "-c", program], pass_fds=[writer])
    assert os.read(reader, 1) == b"!"
    os.close(reader)
    os.close(writer)
    assert child_guard.stop(child, grace_s=0.1) == -signal.SIGKILL
    assert child_guard.stop(child) == -signal.SIGKILL


@pytest.mark.mooncake
def test_a_store_starts_lists_and_stops() -> None:
    with LocalStore(segment_bytes=64 << 20) as store:
        pids = [store.master_pid, store.storage_pid]
        assert all(alive(pid) for pid in pids)
        assert len(store.segments()) == 1
        assert store.keys() == []
        environment = store.client_environment()
        assert environment["MOONCAKE_MASTER"] == store.master_address
        with pytest.raises(LocalStoreError, match="already started"):
            store.start()
    assert not any(alive(pid) for pid in pids)
    assert (store.master_pid, store.storage_pid) == (0, 0)
    store.stop()


@pytest.mark.mooncake
def test_a_port_that_is_taken_costs_another_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    pick = local_store._free_ports
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        picks: list[list[int]] = []

        def pick_taken_first(count: int, host: str) -> list[int]:
            ports = pick(count, host)
            if not picks:
                ports[0] = taken.getsockname()[1]
            picks.append(ports)
            return ports

        monkeypatch.setattr(local_store, "_free_ports", pick_taken_first)
        with LocalStore(segment_bytes=64 << 20) as store:
            assert len(store.segments()) == 1
    assert len(picks) == 2


@pytest.mark.mooncake
def test_with_http_metadata_objects_come_back() -> None:
    """The canary of opening a client is put, got, compared and removed."""
    ports = StorePorts(*local_store._free_ports(4, "127.0.0.1"))
    with LocalStore(segment_bytes=64 << 20, metadata="http", ports=ports) as store:
        server = f"http://127.0.0.1:{ports.metadata}/metadata"
        assert store.client_environment()["MOONCAKE_TE_META_DATA_SERVER"] == server
        assert store.master_address == f"127.0.0.1:{ports.rpc}"
        program = (
            "from mooncake_trtllm import _native\n"
            f"store = _native.open_mooncake_store({store.master_address!r}, "
            f"metadata_server={server!r}, local_hostname='127.0.0.1')\n"
            "store.close(5.0)\n"
        )
        result = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
        )
        assert result.returncode == 0, result.stderr


@pytest.mark.mooncake
def test_a_store_that_never_starts_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_store, "server_program", lambda _name: Path("/bin/false"))
    store = LocalStore(segment_bytes=64 << 20)
    with pytest.raises(LocalStoreError, match=r"did not start in 5 attempts.*ended with status 1"):
        store.start()
    assert (store.master_pid, store.storage_pid) == (0, 0)


@pytest.mark.mooncake
@pytest.mark.slow
def test_killed_storage_is_expired() -> None:
    with LocalStore(segment_bytes=64 << 20, client_ttl_s=2) as store:
        pid = store.storage_pid
        assert store.kill_storage(wait_expired_s=30) > 0
        assert not alive(pid)
        assert store.segments() == []
        assert store.storage_pid == 0


@pytest.mark.mooncake
def test_both_servers_die_with_the_process_that_started_them() -> None:
    program = (
        "import os\n"
        "from mooncake_trtllm.local_store import LocalStore\n"
        "store = LocalStore(segment_bytes=64 << 20).start()\n"
        "print(store.master_pid, store.storage_pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    pids = pids_of_who_kills_himself(program)
    assert len(pids) == 2
    assert wait_until_gone(pids)
