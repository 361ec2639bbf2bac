"""What the Mooncake back end does when the real store misbehaves. Names of master and storage
processes, codes and times are those of the store's own documentation of faults."""

from __future__ import annotations

import ctypes
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.fake_mooncake import free_address
from support.processes import run_python
from support.signals import kill, resume, stopped
from support.ticker import Ticker
from support.waiting import until

from mooncake_trtllm import _native, child_guard
from mooncake_trtllm.errors import KvConnectorStoreError
from mooncake_trtllm.local_store import LocalStore

pytestmark = pytest.mark.mooncake

CLIENT_TTL_S = 3


@contextmanager
def opened(master: str) -> Iterator[_native.Store]:
    store = _native.open_mooncake_store(master)
    try:
        yield store
    finally:
        store.close(10.0)


def guard(store: _native.Store) -> _native.GuardedStore:
    return _native.GuardedStore(store, threads=6, max_abandoned=4)


@pytest.fixture(name="running", scope="module")
def running_fixture() -> Iterator[LocalStore]:
    """A store that no test harms."""
    with LocalStore(segment_bytes=128 << 20) as running:
        yield running


@pytest.fixture(name="mortal")
def mortal_fixture() -> Iterator[LocalStore]:
    """A store to be harmed, which notices dead storage soon."""
    with LocalStore(segment_bytes=64 << 20, client_ttl_s=CLIENT_TTL_S) as mortal:
        yield mortal


def raw_client(master: str) -> Any:
    """Mooncake's own client, for what ours never does."""
    from mooncake.store import MooncakeDistributedStore

    client = MooncakeDistributedStore()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        own = f"127.0.0.1:{probe.getsockname()[1]}"
    assert client.setup(own, "P2PHANDSHAKE", 0, 0, "tcp", "", master) == 0
    return client


# A store in good health ------------------------------------------------------------------------


def test_a_put_of_an_existing_key_keeps_the_old_bytes(running: LocalStore) -> None:
    with opened(running.master_address) as store:
        assert store.put([("existing", b"old bytes")]) == [("ok", "unknown")]
        assert store.put([("existing", b"new")]) == [("ok", "unknown")]
        assert store.get(["existing"], 100) == [("ok", b"old bytes")]
        assert store.remove(["existing"]) == ["ok"]


def test_b66_a_half_written_key_is_a_miss_and_takes_puts(running: LocalStore) -> None:
    writer = raw_client(running.master_address)
    with opened(running.master_address) as store:
        assert list(writer.batch_put_session_start(["half"], [100])) == [0]
        # Accepted, and nothing is stored.
        assert store.put([("half", b"x" * 100)]) == [("ok", "unknown")]
        assert store.exists(["half"]) == ["miss"]
        assert store.get(["half"], 100) == [("miss", b"")]
        assert store.remove(["half"]) == ["miss"]
        assert list(writer.batch_put_session_revoke(["half"])) == [0]
        assert store.put([("half", b"y" * 100)]) == [("ok", "unknown")]
        assert store.get(["half"], 100) == [("ok", b"y" * 100)]
        assert store.remove(["half"]) == ["ok"]
    writer.close()


def test_b72_objects_outlive_the_client_that_put_them(running: LocalStore) -> None:
    with opened(running.master_address) as writer:
        writer.put([("outlives", b"bytes")])
    with opened(running.master_address) as reader:
        assert reader.get(["outlives"], 10) == [("ok", b"bytes")]
        assert reader.remove(["outlives"]) == ["ok"]


def test_opening_leaves_no_canary_behind(running: LocalStore) -> None:
    before = running.keys()
    with opened(running.master_address):
        assert running.keys() == before


def test_calls_after_close_are_down_and_do_not_crash(running: LocalStore) -> None:
    done = run_python(
        """
import sys
from mooncake_trtllm import _native
store = _native.open_mooncake_store(sys.argv[1])
store.close(10.0)
print(store.exists(["a"]), store.get(["a"], 10), store.put([("a", b"x")]), store.remove(["a"]))
store.close(10.0)
""",
        running.master_address,
    )
    assert done.stdout == "['down'] [('down', b'')] [('down', 'none')] ['down']\n"


def test_a_process_that_closes_nothing_ends_well(running: LocalStore) -> None:
    run_python(
        """
import sys
from mooncake_trtllm import _native
store = _native.open_mooncake_store(sys.argv[1])
store.put([("left open", b"x")])
store.remove(["left open"])
sys.exit(9)
""",
        running.master_address,
        status=9,
    )


# No store to open ------------------------------------------------------------------------------


def test_an_absent_master_is_an_error_within_5_s_and_never_holds_the_gil() -> None:
    begin = time.monotonic()
    with Ticker() as ticker, pytest.raises(KvConnectorStoreError, match="cannot be reached"):
        _native.open_mooncake_store(free_address())
    assert time.monotonic() - begin < 5
    assert ticker.longest_gap_s < 0.1


def test_a_silent_master_is_an_error_within_6_s() -> None:
    # In a process of its own, since its timeouts are read when the client is first used.
    program = """
import sys, time
from mooncake_trtllm import _native, child_guard
from mooncake_trtllm.errors import KvConnectorStoreError
begin = time.monotonic()
try:
    _native.open_mooncake_store(sys.argv[1])
except KvConnectorStoreError as error:
    print(time.monotonic() - begin, error)
"""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        seconds, message = run_python(program, address).stdout.split(" ", 1)
    assert float(seconds) < 6
    assert address in message
    assert "it hangs, is no Mooncake master, or is of another release" in message


def test_without_storage_the_canary_says_how_to_start_it(mortal: LocalStore) -> None:
    mortal.kill_storage()
    begin = time.monotonic()
    with pytest.raises(KvConnectorStoreError) as error:
        _native.open_mooncake_store(mortal.master_address)
    assert time.monotonic() - begin < 10
    assert "canary" in str(error.value)
    assert "-200 (NO_AVAILABLE_HANDLE)" in str(error.value)
    assert "mooncake_client --global_segment_size" in str(error.value)


# Storage dies, hangs ---------------------------------------------------------------------------


def test_killed_storage_is_stale_then_absent(mortal: LocalStore) -> None:
    with opened(mortal.master_address) as store:
        store.put([("a", b"x" * 1000), ("b", b"y" * 1000)])
        assert store.get(["a"], 1000)[0][0] == "ok"
        kill(mortal.storage_pid)
        begin = time.monotonic()
        assert store.exists(["a"]) == ["ok"], "the master cannot know yet"
        assert store.get(["a"], 1000) == [("stale", b"")]
        assert store.put([("c", b"z")])[0][0] == "stale"
        assert time.monotonic() - begin < 5
        mortal.kill_storage()  # waits until the master has noticed
        assert store.exists(["a", "b"]) == ["miss", "miss"]
        assert store.get(["a"], 1000) == [("miss", b"")]
        assert store.put([("c", b"z")]) == [("back off", "none")]


def test_hung_storage_costs_the_deadline_and_no_more(mortal: LocalStore) -> None:
    with opened(mortal.master_address) as store:
        guarded = guard(store)
        guarded.put([("a", b"x" * 100_000)])
        with stopped(mortal.storage_pid):
            begin = time.monotonic()
            with Ticker() as ticker:
                assert guarded.get(["a"], 100_000, 0.5) == [("down", b"")]
                assert time.monotonic() - begin < 1.5
                # The abandoned call comes back by itself, and leaves the GIL alone until then.
                until(lambda: guarded.counters()["store_calls_abandoned_now"] == 0)
            assert ticker.ticks > 200
        assert guarded.counters()["store_calls_abandoned"] == 1
        guarded.close(5.0)


@pytest.mark.slow
def test_bytes_do_not_arrive_after_a_get_has_failed(mortal: LocalStore) -> None:
    # What the buffers of a call that has returned may be used for again depends on it.
    count, size = 8, 4 << 20
    client = raw_client(mortal.master_address)
    keys = [f"late{i}" for i in range(count)]
    memory = ctypes.create_string_buffer(count * size)
    address = ctypes.addressof(memory)
    pointers = [address + i * size for i in range(count)]
    assert client.register_buffer(address, count * size) == 0
    assert client.batch_put_from(keys, pointers, [size] * count) == [0] * count
    with stopped(mortal.storage_pid):
        codes = client.batch_get_into(keys, pointers, [size] * count)
        assert all(code < 0 for code in codes)
        ctypes.memset(address, 0x77, count * size)
    # Alive again, it answers what it was asked for; nobody listens any more.
    until(lambda: len(mortal.segments()) == 1)
    until(lambda: client.batch_put_from(["alive"], [address], [1]) == [0])
    assert memory.raw == b"\x77" * (count * size)
    client.close()


def test_a_process_ends_well_under_a_batch_that_hangs(mortal: LocalStore) -> None:
    program = """
import sys
from mooncake_trtllm import _native
from support.signals import stop
guarded = _native.GuardedStore(
    _native.open_mooncake_store(sys.argv[1]), threads=4, max_abandoned=2
)
keys = [f"hang{i}" for i in range(16)]
assert guarded.put([(key, b"x" * 2_000_000) for key in keys], 30.0)[0][0] == "ok"
stop(int(sys.argv[2]))
assert guarded.get(keys, 2_000_000, 0.5)[0][0] == "down"
sys.exit(4)
"""
    try:
        run_python(program, mortal.master_address, str(mortal.storage_pid), status=4)
    finally:
        resume(mortal.storage_pid)


# The master dies, hangs ------------------------------------------------------------------------


def test_a_killed_master_is_down_within_the_deadline(mortal: LocalStore) -> None:
    with opened(mortal.master_address) as store:
        guarded = guard(store)
        guarded.put([("a", b"x")])
        kill(mortal.master_pid)
        # Four calls go to the store or are given up; from then on it is left alone.
        for _ in range(8):
            begin = time.monotonic()
            assert guarded.exists(["a"], 1.0) == ["down"]
            assert time.monotonic() - begin < 2
        counters = guarded.counters()
        assert counters["store_breaker_opened"] == 1
        assert counters["store_calls_refused"] >= 3
        assert guarded.put([("b", b"x")], 1.0)[0][0] == "down"
        until(lambda: guarded.counters()["store_calls_abandoned_now"] == 0)
        guarded.close(5.0)


def test_a_hung_master_is_down_and_then_back(mortal: LocalStore) -> None:
    with opened(mortal.master_address) as store:
        guarded = guard(store)
        guarded.put([("a", b"x")])
        with stopped(mortal.master_pid):
            begin = time.monotonic()
            assert guarded.exists(["a"], 0.3) == ["down"]
            assert guarded.get(["a"], 10, 0.3) == [("down", b"")]
            assert guarded.put([("b", b"x")], 0.3)[0] == ("down", "unknown")
            assert time.monotonic() - begin < 3
        # Objects are still there; the breaker finds out by itself.
        until(lambda: guarded.exists(["a"], 2.0) == ["ok"])
        assert guarded.get(["a"], 10, 2.0) == [("ok", b"x")]
        guarded.close(5.0)


def test_b71_a_restarted_master_has_forgotten_everything_and_serves_again(
    mortal: LocalStore, tmp_path: Path
) -> None:
    command = Path(f"/proc/{mortal.master_pid}/cmdline").read_bytes().split(b"\0")[:-1]
    with opened(mortal.master_address) as store:
        store.put([("a", b"x")])
        assert store.get(["a"], 10) == [("ok", b"x")]
        kill(mortal.master_pid)
        until(lambda: store.exists(["a"]) == ["down"])
        with open(tmp_path / "master.log", "wb") as log:
            master = child_guard.spawn(
                [part.decode() for part in command], env=dict(os.environ), output=log
            )
        try:
            until(lambda: store.exists(["a"]) == ["miss"])
            assert store.get(["a"], 10) == [("miss", b"")]
            # Storage mounts again by itself; until then there is no room.
            until(lambda: store.put([("a", b"anew")])[0][0] == "ok")
            assert store.get(["a"], 10) == [("ok", b"anew")]
        finally:
            child_guard.stop(master)
