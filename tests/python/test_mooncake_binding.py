"""The client of Mooncake's Python binding, against a stand-in for the binding."""

from __future__ import annotations

import os
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.fake_mooncake import FakeStore, forget_defaults, free_address, install, listening
from support.processes import run_python
from support.ticker import Ticker

from mooncake_trtllm import _native, mooncake_wheel
from mooncake_trtllm.errors import KvConnectorConfigError, KvConnectorStoreError

CLIENT_DEFAULTS = {
    "MC_TCP_ENABLE_CONNECTION_POOL": "1",
    "MC_TCP_STATUS_TIMEOUT_SEC": "3",
    "MC_RPC_TIMEOUT_MS": "2000",
    "MC_STORE_CLIENT_SETUP_RETRIES": "1",
    "MC_LOG_LEVEL": "ERROR",
}
Open = Callable[..., _native.Store]


@pytest.fixture(name="master")
def master_fixture() -> Iterator[str]:
    with listening() as address:
        yield address


@pytest.fixture(name="open_store")
def open_store_fixture(master: str, environment: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens stores on the stand-in; closes them."""
    forget_defaults(environment, list(CLIENT_DEFAULTS))
    FakeStore.reset()
    install(environment, MooncakeDistributedStore=FakeStore)
    opened: list[_native.Store] = []

    def open_store(**options: Any) -> _native.Store:
        store = _native.open_mooncake_store(options.pop("master", master), **options)
        opened.append(store)
        return store

    yield open_store
    for store in opened:
        store.close(5.0)


# Opening --------------------------------------------------------------------------------------


def test_setup_gets_an_explicit_own_address_and_every_option(open_store: Open, master: str) -> None:
    open_store(
        metadata_server="http://10.0.0.1:8080/metadata",
        protocol="rdma",
        devices="mlx5_0",
        local_hostname="127.0.0.1",
        tenant="blue",
        global_segment_bytes=1 << 34,
    )
    ((arguments, keywords),) = FakeStore.setups
    host, port = arguments[0].rsplit(":", 1)
    assert (host, 0 < int(port) < 65536) == ("127.0.0.1", True)
    assert arguments[1:] == (
        "http://10.0.0.1:8080/metadata", 1 << 34, 0, "rdma", "mlx5_0", master,
    )  # fmt: skip
    assert keywords == {"tenant_id": "blue"}


@pytest.mark.parametrize("hostname", ["", "localhost"])
def test_without_a_hostname_it_is_the_address_towards_the_master(
    open_store: Open, hostname: str
) -> None:
    open_store(local_hostname=hostname)
    ((arguments, keywords),) = FakeStore.setups
    assert arguments[0].startswith("127.0.0.1:")
    assert arguments[1:6] == ("P2PHANDSHAKE", 0, 0, "tcp", "")
    assert keywords == {}, "releases without tenants must work"


def test_an_own_address_with_a_port_is_kept(open_store: Open) -> None:
    open_store(local_hostname="192.0.2.7:12345")
    assert FakeStore.setups[0][0][0] == "192.0.2.7:12345"


def test_a_hostname_of_another_machine_is_refused(open_store: Open) -> None:
    with pytest.raises(KvConnectorConfigError, match=r"MOONCAKE_LOCAL_HOSTNAME=192\.0\.2\.7"):
        open_store(local_hostname="192.0.2.7")
    assert FakeStore.setups == []


def test_what_a_verb_sets_before_is_told_too(environment: pytest.MonkeyPatch) -> None:
    forget_defaults(environment, list(CLIENT_DEFAULTS))
    mooncake_wheel.quieten()
    assert os.environ["MC_LOG_LEVEL"] == "ERROR"
    told = mooncake_wheel.set_missing_environment()
    assert dict(pair.split("=") for pair in told.split()) == CLIENT_DEFAULTS
    assert mooncake_wheel.set_missing_environment() == "", "once"


def test_a_master_behind_a_registry_is_not_reached_beforehand(open_store: Open) -> None:
    open_store(master="etcd://10.0.0.1:2379;10.0.0.2:2379")
    assert FakeStore.setups[0][0][6] == "etcd://10.0.0.1:2379;10.0.0.2:2379"


def test_client_variables_are_set_where_the_user_has_not(
    open_store: Open, environment: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    environment.setenv("MC_RPC_TIMEOUT_MS", "700")
    open_store()
    expected = CLIENT_DEFAULTS | {"MC_RPC_TIMEOUT_MS": "700"}
    assert {name: os.environ.get(name) for name in CLIENT_DEFAULTS} == expected
    logged = [line for line in capfd.readouterr().err.splitlines() if "set for Mooncake" in line]
    assert len(logged) == 1
    assert "MC_TCP_ENABLE_CONNECTION_POOL=1" in logged[0]
    assert "MC_RPC_TIMEOUT_MS" not in logged[0]


def test_a_second_client_finds_the_variables_set_and_says_nothing(
    open_store: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    open_store()
    capfd.readouterr()
    FakeStore.calls.clear()
    open_store()
    assert "set for Mooncake" not in capfd.readouterr().err


@pytest.mark.parametrize("address", ["store", "10.0.0.1", "10.0.0.1:", ":50051", "h:0", "h:99999"])
def test_a_malformed_master_address_is_named(open_store: Open, address: str) -> None:
    with pytest.raises(KvConnectorConfigError, match=f"MOONCAKE_MASTER: '{address}'.*host:port"):
        open_store(master=address)
    assert FakeStore.setups == []


def test_an_absent_master_is_a_quick_error_that_never_holds_the_gil(open_store: Open) -> None:
    address = free_address()
    begin = time.monotonic()
    with Ticker() as ticker, pytest.raises(KvConnectorStoreError) as error:
        open_store(master=address)
    assert time.monotonic() - begin < 5
    assert ticker.longest_gap_s < 0.1
    assert f"MOONCAKE_MASTER={address}" in str(error.value)
    assert "refused" in str(error.value)
    assert "start mooncake_master" in str(error.value)
    assert FakeStore.setups == [], "setup() would hold the GIL"


def test_a_failed_setup_names_the_settings_that_are_not_the_usual_ones(open_store: Open) -> None:
    FakeStore.setup_answer = -600
    with pytest.raises(KvConnectorStoreError) as usual:
        open_store()
    assert "MOONCAKE_TE_META_DATA_SERVER" not in str(usual.value)
    with pytest.raises(KvConnectorStoreError) as error:
        open_store(metadata_server="http://me:secret@10.0.0.1/metadata", protocol="carrier-pigeon")
    assert "MOONCAKE_TE_META_DATA_SERVER is not P2PHANDSHAKE" in str(error.value)
    assert "MOONCAKE_PROTOCOL=carrier-pigeon is not in this build" in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("code", [-1, -600, -900])
def test_a_failed_setup_names_code_release_and_remedy(open_store: Open, code: int) -> None:
    FakeStore.setup_answer = code
    with pytest.raises(KvConnectorStoreError, match=f"setup as 127.0.0.1:.*{code}.*--version"):
        open_store()
    assert FakeStore.calls == [], "nothing may be called after a failed setup"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (TypeError("unexpected keyword"), KvConnectorConfigError),
        (RuntimeError("no device"), KvConnectorStoreError),
        ("ok", KvConnectorConfigError),
    ],
)
def test_a_setup_that_raises_or_answers_nonsense(
    open_store: Open, answer: Any, error: type[Exception]
) -> None:
    FakeStore.setup_answer = answer
    with pytest.raises(error, match="setup as"):
        open_store()


# The wheel ------------------------------------------------------------------------------------


def test_a_missing_wheel_says_how_to_install_it(
    open_store: Open, environment: pytest.MonkeyPatch
) -> None:
    environment.setitem(sys.modules, "mooncake", None)
    environment.delitem(sys.modules, "mooncake.store")
    with pytest.raises(KvConnectorConfigError, match=r"not installed.*pip install.*MC_BACKEND"):
        open_store()


def test_a_package_that_hides_the_wheel_is_named(
    open_store: Open, environment: pytest.MonkeyPatch
) -> None:
    hiding = types.ModuleType("mooncake")
    hiding.__path__ = ["/somewhere/else/mooncake"]
    environment.setitem(sys.modules, "mooncake", hiding)
    environment.delitem(sys.modules, "mooncake.store")
    with pytest.raises(KvConnectorConfigError, match=r"/somewhere/else/mooncake.*sys\.path"):
        open_store()


def test_a_wheel_whose_libraries_are_missing_says_which(
    open_store: Open, environment: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake" / "store.py").write_text(
        "raise ImportError('libibverbs.so.1: cannot open shared object file')\n"
    )
    environment.delitem(sys.modules, "mooncake")
    environment.delitem(sys.modules, "mooncake.store")
    environment.syspath_prepend(str(tmp_path))
    (tmp_path / "mooncake" / "__init__.py").write_text("")
    try:
        with pytest.raises(KvConnectorConfigError, match=r"libibverbs\.so\.1.*apt-get install"):
            open_store()
    finally:
        sys.modules.pop("mooncake", None)


def test_a_wheel_without_what_is_needed_is_too_old(
    open_store: Open, environment: pytest.MonkeyPatch
) -> None:
    install(environment)
    with pytest.raises(KvConnectorConfigError, match="no MooncakeDistributedStore"):
        open_store()

    class Old:
        def setup(self, *arguments: Any) -> int:
            return 0

    install(environment, MooncakeDistributedStore=Old)
    with pytest.raises(KvConnectorConfigError, match=r"too old.*batch_is_exist"):
        open_store()


# Calls ----------------------------------------------------------------------------------------


def test_objects_go_there_and_back(open_store: Open) -> None:
    store = open_store()
    assert store.put([("a", b"one"), ("b", b"two"), ("a", b"other")]) == [
        ("ok", "unknown"), ("ok", "unknown"), ("ok", "existed"),
    ]  # fmt: skip
    assert store.exists(["a", "c"]) == ["ok", "miss"]
    assert store.get(["a", "c", "a"], 10) == [("ok", b"one"), ("miss", b""), ("ok", b"one")]
    assert store.remove(["a", "c"]) == ["ok", "miss"]


@pytest.mark.parametrize(
    "answer",
    [
        (3, 3),
        [3],
        [3, 3, 3],
        [3, None],
        [3, "3"],
        [3, 2.0],
        [3, 1 << 70],
        None,
        RuntimeError("lost"),
    ],
    ids=repr,
)
def test_answers_of_a_strange_shape_fail_every_item(open_store: Open, answer: Any) -> None:
    store = open_store()
    store.put([("a", b"one"), ("b", b"two")])

    def alter(_plain: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    for method in ("batch_get_into", "batch_is_exist", "batch_remove", "batch_put_from"):
        FakeStore.answers[method] = alter
    assert store.get(["a", "b"], 10) == [("down", b"")] * 2
    assert store.exists(["a", "b"]) == ["down"] * 2
    assert store.remove(["a", "b"]) == ["down"] * 2
    assert store.put([("c", b"x"), ("d", b"y")]) == [("down", "unknown")] * 2
    FakeStore.answers.clear()


def test_the_gil_is_free_while_the_store_takes_its_time(open_store: Open) -> None:
    store = open_store()
    guarded = _native.GuardedStore(store, threads=2, max_abandoned=1)
    gate = threading.Event()

    def slow(plain: Any) -> Any:
        gate.wait()
        return plain

    FakeStore.answers["batch_is_exist"] = slow
    with Ticker() as ticker:
        # Comes back by its deadline although the store does not.
        assert guarded.exists(["a"], 0.5) == ["down"]
        assert ticker.ticks > 50
    assert guarded.counters()["store_calls_abandoned"] == 1
    gate.set()
    while guarded.counters()["store_calls_abandoned_now"]:
        threading.Event().wait(0.001)
    FakeStore.answers.clear()
    guarded.close(5.0)


def test_no_call_follows_close(open_store: Open) -> None:
    store = open_store()
    store.put([("a", b"one")])
    store.close(5.0)
    made = list(FakeStore.calls)
    assert made[-1] == "close"
    store.close(5.0)
    assert store.get(["a"], 10) == [("down", b"")]
    assert store.exists(["a"]) == ["down"]
    assert store.put([("b", b"x")]) == [("down", "none")]
    assert store.remove(["a"]) == ["down"]
    assert FakeStore.calls == made


def test_dropping_the_store_closes_the_client_once(master: str, open_store: Open) -> None:
    store = _native.open_mooncake_store(master)
    del store
    assert FakeStore.calls.count("close") == 1


def test_a_failed_canary_closes_the_client(open_store: Open) -> None:
    FakeStore.answers["batch_get_into"] = lambda plain: [code - 1 for code in plain]
    with pytest.raises(KvConnectorStoreError, match="1048575 bytes of 1048576"):
        open_store()
    assert FakeStore.calls[-1] == "close"
    assert FakeStore.objects == {}


# The end of the process -----------------------------------------------------------------------

PREPARE = """
import os, sys, threading
sys.modules["pytest"] = type(sys)("pytest")
from support.fake_mooncake import FakeStore, listening
import types
package, module = types.ModuleType("mooncake"), types.ModuleType("mooncake.store")
package.__path__ = []
module.MooncakeDistributedStore = FakeStore
sys.modules["mooncake"], sys.modules["mooncake.store"] = package, module
from mooncake_trtllm import _native
with listening() as address:
    store = _native.open_mooncake_store(address)
"""


def test_a_process_ends_well_with_calls_in_flight() -> None:
    # Threads of the core are inside the binding when the interpreter begins to end, and come back
    # from it: that must happen before it is too late to take the GIL.
    done = run_python(
        PREPARE
        + """
guarded = _native.GuardedStore(store, threads=8, max_abandoned=8)
inside, entered, leaving = [], threading.Semaphore(0), threading.Event()
def take_a_while(plain):
    inside.append(1)
    entered.release()
    leaving.wait()
    # The handler of the store, which is next, begins to wait meanwhile.
    threading.Event().wait(0.2)
    inside.pop()
    return plain
FakeStore.answers["batch_is_exist"] = take_a_while
import atexit
def leave():
    print(len(inside), flush=True)
    leaving.set()
atexit.register(leave)
for _ in range(3):
    assert guarded.exists(["a"], 1.0) == ["down"]
    assert entered.acquire(timeout=30)
sys.exit(5)
""",
        status=5,
    )
    assert done.stdout == "3\n", "the calls were not in flight at the end"


def test_a_process_ends_well_with_a_call_that_hangs() -> None:
    begin = time.monotonic()
    run_python(
        PREPARE
        + """
guarded = _native.GuardedStore(store, threads=2, max_abandoned=1)
def hang(plain):
    threading.Event().wait()
FakeStore.answers["batch_is_exist"] = hang
assert guarded.exists(["a"], 0.2) == ["down"]
sys.exit(6)
""",
        status=6,
    )
    assert time.monotonic() - begin < 30


def test_handlers_that_are_registered_later_can_still_use_the_store() -> None:
    done = run_python(
        PREPARE
        + """
import atexit
atexit.register(lambda: print(store.put([("late", b"x")]), flush=True))
"""
    )
    assert done.stdout == "[('ok', 'unknown')]\n"


def test_a_forked_child_does_not_touch_the_store() -> None:
    done = run_python(
        PREPARE
        + """
import warnings
warnings.simplefilter("ignore")
calls = len(FakeStore.calls)
pid = os.fork()
if pid == 0:
    down = store.exists(["a"]) == ["down"] and len(FakeStore.calls) == calls
    os._exit(0 if down else 1)
print(os.waitpid(pid, 0)[1], store.exists(["a"]), flush=True)
"""
    )
    assert done.stdout == "0 ['miss']\n"
