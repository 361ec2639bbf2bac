"""Metrics: they equal what happened, and whatever is wrong with them costs nothing else."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import logging
import os
import re
import socket
import sys
import threading
import urllib.request
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import prometheus_client.parser
import pytest
from support.engine import Engine, Request, Shape, make_model
from support.gates import gate_stores
from support.processes import clean_environment, run_python
from support.stores import key_of_block, memory_of, shards
from support.waiting import until

from mooncake_trtllm import KvConnectorLoadError, _metrics
from mooncake_trtllm._stats import BYPASSES, stat_table
from mooncake_trtllm.cli.main import main

MakeEngine = Callable[..., Engine]
TOKENS = [int(t) for t in np.random.default_rng(47).integers(0, 32000, 61)]
OTHER = [int(t) for t in np.random.default_rng(48).integers(0, 32000, 61)]
FULL = 60 // 8
_ids = itertools.count(1)


def request(tokens: list[int] = TOKENS, **extra: Any) -> Request:
    return Request(next(_ids), list(tokens), extra)


def free_ports(count: int) -> int:
    """The first of `count` neighbouring ports that were free just now."""
    # Processes that test at the same time begin at different places.
    for first in range(21000 + os.getpid() % 500 * 40, 60000, 7 * count):
        try:
            for port in range(first, first + count):
                with socket.create_server(("127.0.0.1", port)):
                    pass
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


def scrape(port: int, timeout_s: float = 20.0) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=timeout_s) as reply:
        return str(reply.read().decode())


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Name and label values in the order of their names -> value."""
    found: dict[tuple[str, ...], float] = {}
    for family in prometheus_client.parser.text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, *(sample.labels[name] for name in sorted(sample.labels)))
            assert key not in found, f"{key} twice"
            found[key] = sample.value
    return found


def listening() -> set[str]:
    """Sockets of this process that listen."""
    tables = [Path(f"/proc/self/net/tcp{v}").read_text().splitlines()[1:] for v in ("", "6")]
    states = {line.split()[9]: line.split()[3] for table in tables for line in table}
    own = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry))
        except OSError:
            continue
        if match and states.get(match[1]) == "0A":
            own.add(match[1])
    return own


def server_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "kvc-metrics"]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """I6: neither thread nor socket, once the engines of a test are closed."""
    gc.collect()
    before = listening()
    yield
    gc.collect()
    assert server_threads() == []
    assert listening() <= before


@pytest.fixture(name="port")
def port_fixture(environment: pytest.MonkeyPatch) -> int:
    """MC_METRICS_PORT is set."""
    port = free_ports(3)
    environment.setenv("MC_METRICS_PORT", str(port))
    return port


# Snapshots through Python -------------------------------------------------------------------------


def test_snapshots_are_plain_and_complete(make_engine: MakeEngine) -> None:
    engine = make_engine(register=False)
    for connector, role in ((engine.scheduler, "scheduler"), (engine.worker, "worker")):
        names = {stat.name for stat in stat_table(role)}
        before = connector.metrics()
        assert names <= set(before) <= names | {"queries_bypassed", "layers_stored_apart"}
        assert set(connector.stats()) == {n for n in before if not n.endswith("_latency")}
        figures = connector.stats()
        assert figures.pop("ranks_awaited", 1) == 1, "the only rank has no pool yet"
        assert not any(figures.values())
        json.dumps(before, allow_nan=False)
    engine.worker.register_kv_caches(engine.pools[0])
    engine.lookup(request())
    writer = make_engine()
    writer.serve(request())
    engine.serve(request())
    metrics = engine.scheduler.metrics()
    for after in (metrics, engine.worker.metrics()):
        json.dumps(after, allow_nan=False)
    assert set(metrics) == set(before_keys(engine))
    assert (metrics["blocks_looked_up"], metrics["blocks_offered"]) == (2 * FULL, FULL)
    assert metrics["blocks_missed_no_manifest"] == FULL
    for latency, count in (
        (metrics["lookup_latency"], 2),
        (metrics["staging_latency"], 1),
        (engine.worker.metrics()["load_latency"], 1),
    ):
        assert latency["count"] == count
        assert 0 < latency["sum_seconds"] < 60
        bounds, counts = zip(*latency["buckets"], strict=True)
        assert (bounds[-1], counts[-1]) == ("+Inf", count)
        assert list(bounds[:-1]) == sorted(bounds[:-1])
        assert list(counts) == sorted(counts)
    assert writer.worker.metrics()["put_latency"]["count"] >= 1


def before_keys(engine: Engine) -> list[str]:
    return [*(stat.name for stat in stat_table("scheduler")), "queries_bypassed"]


def test_misses_by_reason(
    make_engine: MakeEngine, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """I7: each query and each block that it could have got is in exactly one place."""
    gates = gate_stores(environment)
    switch = tmp_path / "off"
    environment.setenv("MC_DISABLE_FILE", str(switch))
    engine = make_engine(register=False)
    engine.lookup(request())  # no pool yet
    engine.worker.register_kv_caches(engine.pools[0])
    engine.lookup(request())  # nothing is committed
    writer = make_engine()
    for tokens in (TOKENS, OTHER):
        writer.serve(request(tokens))
    assert engine.lookup(request()) == FULL
    engine.lookup(request(), computed=3)  # unaligned
    engine.lookup(request(lora_task_id=5))
    broken = request().bound()
    broken.get_tokens = None
    engine.scheduler.get_num_new_matched_tokens(broken, 0)
    switch.touch()
    engine.lookup(request())
    switch.unlink()
    memory_of(engine).remove([key_of_block(engine, OTHER, 3)])
    assert engine.lookup(request(OTHER)) == 3  # a shard is lost
    gates[0].answer_with("down")
    assert engine.lookup(request(OTHER[::-1])) == 0
    counted = engine.scheduler.stats()
    assert counted["queries"] == 9
    assert {name: counted[f"queries_bypassed_{name}"] for name in BYPASSES} == {
        "no_pool": 1,
        "disabled": 1,
        "content": 1,
        "error": 1,
    }
    assert counted["queries_bypassed"] == 4
    missed = {n: v for n, v in counted.items() if n.startswith("blocks_missed_") and v}
    assert missed == {
        "blocks_missed_no_manifest": FULL,
        "blocks_missed_unaligned": FULL - 1,
        "blocks_missed_shard_lost": FULL - 3,
        "blocks_missed_store_failed": FULL,
    }
    assert counted["blocks_looked_up"] == counted["blocks_offered"] + sum(missed.values())


# Prometheus ---------------------------------------------------------------------------------------


def test_off_by_default(make_engine: MakeEngine) -> None:
    gc.collect()
    before = listening()
    engine = make_engine()
    engine.serve(request())
    assert server_threads() == []
    assert listening() == before


def test_prometheus_reads_what_python_says(make_engine: MakeEngine, port: int) -> None:
    """Ranks that are threads of one process share the server of the lowest one."""
    engine = make_engine(tp=2)
    engine.serve(request())
    engine.serve(request())
    assert len(server_threads()) == 1
    found = samples(scrape(port))
    for connector, role, rank in (
        (engine.scheduler, "scheduler", 0),
        (engine.workers[0], "worker", 0),
        (engine.workers[1], "worker", 1),
    ):
        metrics = connector.metrics()
        for stat in stat_table(role):
            name = f"mooncake_trtllm_{role}_{stat.family}"
            labels = ["0", str(rank), *([stat.reason] if stat.reason else [])]

            def read(of: str, labels: list[str] = labels) -> float:
                key = (of, *labels)
                return found[key]

            value = metrics[stat.name]
            if stat.kind == "histogram":
                assert read(f"{name}_seconds_count") == value["count"]
                assert read(f"{name}_seconds_sum") == value["sum_seconds"]
                assert found[(f"{name}_seconds_bucket", "0", "+Inf", str(rank))] == value["count"]
            else:
                suffix = "_total" if stat.kind == "counter" else ""
                assert read(name + suffix) == value, stat
    assert found[("mooncake_trtllm_worker_blocks_loaded_total", "0", "1")] == FULL
    engine.workers[0].close()
    engine.scheduler.close()
    left = scrape(port)
    assert 'rank="1"' in left
    assert 'rank="0"' not in left
    engine.close()
    with pytest.raises(OSError, match="refused"):
        scrape(port)


def test_a_rank_in_a_process_of_its_own_adds_its_number(port: int, tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", Shape())
    done = run_python(
        """
import sys, urllib.request
from support.engine import HostTensor, Shape, llm_args
from mooncake_trtllm import MooncakeKvCacheConnectorWorker
shape = Shape()
worker = MooncakeKvCacheConnectorWorker(llm_args(sys.argv[1], shape, tp=2))
worker.register_kv_caches(HostTensor(shape.pool(2), shape.dtype))
print(urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[2]}", timeout=20).read().decode())
""",
        str(model),
        str(port + 1),
        environment=clean_environment(
            MC_BACKEND="memory", MC_RANK="1", MC_WORLD_SIZE="2", MC_METRICS_PORT=str(port)
        ),
    )
    assert 'mooncake_trtllm_worker_blocks_saved_total{connector="0",rank="1"} 0.0' in done.stdout


def test_an_operator_sees_what_became_of_requests(
    make_engine: MakeEngine, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = make_engine()
    engine.serve(Request(7, TOKENS))
    engine.serve(Request(8, TOKENS))
    assert main(["explain", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["address"] == f"127.0.0.1:{port}"
    assert answer["requests"] == engine.scheduler.explain()
    assert [line.split(":")[0] for line in answer["requests"]] == ["request 7", "request 8"]
    other = make_engine()
    other.serve(Request(9, TOKENS))
    assert main(["explain", "--address", f"127.0.0.1:{port}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["connector 0"] * 2 + ["connector 1"]
    engine.close()
    other.close()
    assert main(["explain"]) == 3
    assert "no engine answers there" in capsys.readouterr().err


def test_nobody_to_ask_is_wrong_usage(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.delenv("MC_METRICS_PORT", raising=False)
    assert main(["explain"]) == 2
    assert "MC_METRICS_PORT is 0" in capsys.readouterr().err
    assert main(["explain", "--address", "here:there"]) == 2
    assert "--address here:there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\n<html>", "no engine of this product"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 100\r\n\r\nreq", "no engine answers there"),
        (
            b"HTTP/1.0 404 Not Found\r\n\r\n",
            "what answers there is no engine of this product (HTTP 404 Not Found)",
        ),
    ],
)
def test_an_answer_that_is_no_explanation_is_exit_code_3(
    reply: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        code = main(["explain", "--address", f"127.0.0.1:{server.getsockname()[1]}"])
        thread.join()
    assert code == 3
    assert message in capsys.readouterr().err


def test_a_client_that_trickles_holds_up_nobody_for_long(
    make_engine: MakeEngine, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes in time; the connection has a bound as a whole."""
    monkeypatch.setattr(_metrics._Handler, "timeout", 0.5)
    make_engine()
    ended = threading.Event()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as slow:

        def trickle() -> None:
            with contextlib.suppress(OSError):
                while not ended.wait(0.1):
                    slow.sendall(b"G")

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            assert samples(scrape(port))
        finally:
            ended.set()
            thread.join()


def test_several_engines_share_a_server(make_engine: MakeEngine, port: int) -> None:
    first, second = make_engine(), make_engine(Shape(layers=5))
    first.serve(request())
    name = "mooncake_trtllm_worker_blocks_saved_total"
    found = samples(scrape(port))
    assert [found[(name, number, "0")] for number in ("0", "1")] == [FULL, 0]
    first.close()
    found = samples(scrape(port))
    assert (name, "0", "0") not in found
    assert found[(name, "1", "0")] == 0
    assert second.worker.stats()["blocks_saved"] == 0


def test_dropping_the_last_reference_ends_the_server(
    environment: pytest.MonkeyPatch, tmp_path: Path, port: int
) -> None:
    """I6, also with a client that has connected and says nothing."""
    model = make_model(tmp_path / "model", Shape())
    engine: Engine | None = Engine(Shape(), model, environment)
    assert engine is not None
    alive = weakref.ref(engine.worker)
    scrape(port)
    (server,) = _metrics.exporter._servers.values()
    with socket.create_connection(("127.0.0.1", port)) as idle:
        until(lambda: server._connection is not None)
        engine = None
        gc.collect()
        assert alive() is None
        assert server_threads() == []
        idle.settimeout(20)
        with contextlib.suppress(ConnectionResetError):  # if it was not accepted yet
            assert idle.recv(1) == b""  # the server's end is closed
    with pytest.raises(OSError, match="refused"):
        scrape(port)


def test_made_again_it_serves_again(make_engine: MakeEngine, port: int) -> None:
    for _ in range(3):
        engine = make_engine()
        assert ("mooncake_trtllm_scheduler_queries_total", "0", "0") in samples(scrape(port))
        engine.close()


def test_another_address(make_engine: MakeEngine, environment: Any, port: int) -> None:
    environment.setenv("MC_METRICS_HOST", "::1")
    make_engine()
    with socket.create_connection(("::1", port), timeout=20):
        pass
    with pytest.raises(OSError, match="refused"):
        scrape(port)


def test_a_fork_leaves_the_server_to_the_parent(port: int, tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", Shape())
    code = """
import os, sys, threading, urllib.request
from support.spawned import TOKENS, Request, engine_of
def scrape(port):
    return urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=20).read().decode()
def sockets():
    links = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
             if os.path.exists(f"/proc/self/fd/{n}")]
    return [link for link in links if link.startswith("socket:")]
port = int(os.environ["MC_METRICS_PORT"])
engine = engine_of()
assert "rank" in scrape(port)
while len(sockets()) > 1:  # the server has not closed the connection yet
    threading.Event().wait(0.01)
child = os.fork()
if child == 0:
    assert not sockets()
    fresh = engine_of()  # the port is the parent's: one warning, and it works
    assert fresh.serve(Request(1, TOKENS)) == 0
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert "rank" in scrape(port)
print("ok")
"""
    environment = clean_environment(
        TEST_MODEL=str(model), TEST_TOKENS=json.dumps(TOKENS), MC_METRICS_PORT=str(port)
    )
    assert run_python(code, environment=environment).stdout.strip() == "ok"


# What is wrong with metrics stays there -----------------------------------------------------------


def test_a_taken_port_is_one_warning(
    make_engine: MakeEngine, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        socket.create_server(("127.0.0.1", port)),
        caplog.at_level(logging.WARNING, "mooncake_trtllm"),
    ):
        engine = make_engine()
        assert [engine.serve(request()) for _ in range(2)] == [0, FULL]
    told = [r.getMessage() for r in caplog.records if "MC_METRICS_PORT" in r.getMessage()]
    assert len(told) == 1
    assert f"127.0.0.1:{port}" in told[0]
    assert "Remedy" in told[0]


@pytest.mark.parametrize("port_and_host", [("65535", "127.0.0.1"), (None, "203.0.113.9")])
def test_an_address_that_cannot_be(
    port_and_host: tuple[str | None, str],
    make_engine: MakeEngine,
    environment: pytest.MonkeyPatch,
    port: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    environment.setenv("MC_METRICS_PORT", port_and_host[0] or str(port))
    environment.setenv("MC_METRICS_HOST", port_and_host[1])
    with caplog.at_level(logging.WARNING, "mooncake_trtllm"):
        engine = make_engine(tp=2)
        # Rank 0 of the first one gets port 65535 itself; rank 1 alone would be beyond it.
        server = _metrics._Server((port_and_host[1], int(port_and_host[0] or port)), 1)
        server.start(list)
        server.stop()
    assert [engine.serve(request()) for _ in range(2)] == [0, FULL]
    assert "Remedy" in caplog.text


def test_without_the_library_the_engine_starts(
    make_engine: MakeEngine,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with caplog.at_level(logging.WARNING, "mooncake_trtllm"):
        engine = make_engine()
        assert engine.serve(request()) == 0
    told = [r.getMessage() for r in caplog.records if "MC_METRICS_PORT" in r.getMessage()]
    assert len(told) == 1
    assert "pip install prometheus-client" in told[0]


def test_a_broken_collector_breaks_nothing_else(
    make_engine: MakeEngine, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7: a failure in metrics never leaves the connector."""
    engine = make_engine()
    engine.serve(request())

    def fail() -> dict[str, Any]:
        raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(engine.scheduler._resources, "metrics", fail)
        assert engine.scheduler.metrics() == {}
        assert engine.scheduler.stats() == {}
        text = scrape(port)
        assert "mooncake_trtllm_worker_blocks_saved_total" in text
        assert "mooncake_trtllm_scheduler" not in text
        assert engine.serve(request()) == FULL
    assert "mooncake_trtllm_scheduler" in scrape(port)


class _Raises(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError(28, "No space left on device")


@pytest.mark.usefixtures("leased")
def test_a_logging_handler_that_raises_breaks_nothing(
    make_engine: MakeEngine, environment: pytest.MonkeyPatch, port: int
) -> None:
    """I7: start-up, every callback, a failed load, the server and the end, each of which logs."""
    logger = logging.getLogger("mooncake_trtllm")
    handler = _Raises()
    environment.setenv("MC_KEY_EPOCH", "990099")  # the effective configuration is news
    environment.setattr(logger, "level", logging.DEBUG)
    logger.addHandler(handler)
    try:
        engine = make_engine()
        assert [engine.serve(request()) for _ in range(2)] == [0, FULL]
        engine.lookup(request(lora_task_id=5))
        engine.scheduler.build_connector_meta(object())
        started = request()
        matched, pages = engine.start(started)
        memory_of(engine).remove(shards(engine))
        engine.worker.bind_connector_meta(engine.plan(started, matched, pages))
        with pytest.raises(KvConnectorLoadError):
            engine.worker.start_load_kv(None)
        environment.setattr(engine.scheduler._resources, "metrics", None)
        assert engine.scheduler.stats() == {}
        scrape(port)
        engine.close()
    finally:
        logger.removeHandler(handler)


def test_standard_error_on_a_full_disk_breaks_nothing(tmp_path: Path) -> None:
    """The core's log lines go there: here of a load that fails."""
    model = make_model(tmp_path / "model", Shape())
    code = """
import logging, os, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
from support.spawned import TOKENS, Request, engine_of, memory_of
from mooncake_trtllm import KvConnectorLoadError
engine = engine_of()
assert engine.serve(Request(1, TOKENS)) == 0
assert engine.serve(Request(2, TOKENS)) == 7
started = Request(3, TOKENS)
matched, pages = engine.start(started)
memory = memory_of(engine)
memory.remove([key for key in memory.keys() if not key.endswith("/manifest")])
engine.worker.bind_connector_meta(engine.plan(started, matched, pages))
try:
    engine.worker.start_load_kv(None)
except KvConnectorLoadError:
    print("ok")
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # else the interpreter itself ends with status 120
"""
    environment = clean_environment(
        TEST_MODEL=str(model), TEST_TOKENS=json.dumps(TOKENS), MC_PROMISE="leased"
    )
    assert "ok" in run_python(code, environment=environment).stdout
