"""The command line, driven in this process over the reference connector."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mooncake_trtllm.cli.main import main
from mooncake_trtllm.cli.trace_report import hits_digest
from mooncake_trtllm.simulator import ConnectorNames
from mooncake_trtllm.simulator.workloads import IdealCache, agentic_workload

SAMPLE = Path(__file__).parents[2] / "data" / "fast25_sample.jsonl"
ROOT = Path(__file__).parents[3]

UseConnector = Callable[[str, str], None]


@pytest.fixture(name="use_connector")
def use_connector_fixture(reference: Any, monkeypatch: pytest.MonkeyPatch) -> UseConnector:
    """Lets the verbs find other classes than the product's."""

    def use(scheduler: str = "Scheduler", worker: str = "Worker") -> None:
        sound = hasattr(reference, scheduler) and hasattr(reference, worker)
        module = reference.__name__ if sound else "simulator.connectors.broken_connectors"
        monkeypatch.setattr(
            "mooncake_trtllm.simulator.config._default_names",
            lambda: ConnectorNames(module, scheduler, worker),
        )

    for name in ("MOONCAKE_MASTER", "MOONCAKE_CONFIG_PATH"):
        monkeypatch.delenv(name, raising=False)
    use()
    return use


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = main([*arguments, "--json"])
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return code, json.loads(out)


def assert_failure(
    capsys: pytest.CaptureFixture[str], code: int, message: str, *arguments: str
) -> None:
    """A run without a result, as scripts see it."""
    capsys.readouterr()
    found, failure = run_json(capsys, *arguments)
    assert found == code
    assert (failure["schema"], failure["ok"], failure["exit_code"]) == ("error/1", False, code)
    assert message.removeprefix("error: ") in failure["failure"]


def test_trace_reports_what_the_product_reuses_of_the_agentic_workload(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.delenv("MC_STAGING_BYTES")
    code, row = run_json(capsys, "trace", "--backend", "memory", "--tp", "2")
    assert code == 0
    assert row["schema"] == "trace/1"
    assert (row["backend"], row["promise"], row["granularity"]) == ("memory", "staged", "block")
    assert (row["requests"], row["errors"], row["tp"]) == (144, 0, 2)
    assert row["blocks_matchable"] == 19584
    assert row["blocks_hit"] == row["blocks_hit_ideal"] == row["blocks_verified"] == 17248
    assert row["block_hit_ratio"] == 0.8807
    assert row["first_request_blocks_hit"] == 0
    assert row["bytes_per_block"] == 32768
    assert row["bytes_loaded"] == 17248 * 65536
    assert row["bytes_saved"] == 2336 * 65536
    cache = IdealCache(32)
    hits = [cache.serve(tokens) for tokens in agentic_workload()]
    assert row["hits_digest"] == hits_digest(hits)
    assert "curve" not in row


@pytest.mark.parametrize("tp", ["1", "2"])
def test_trace_finds_the_same_layer_by_layer(
    tp: str, environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.delenv("MC_STAGING_BYTES")
    arguments = ("trace", "--backend", "memory", "--tp", tp, "--layer-granularity")
    code, row = run_json(capsys, *arguments)
    assert code == 0
    assert row["granularity"] == "layer"
    assert (row["errors"], row["blocks_matchable"]) == (0, 19584)
    assert row["blocks_hit"] == row["blocks_verified"] == 17248
    cache = IdealCache(32)
    assert row["hits_digest"] == hits_digest([cache.serve(t) for t in agentic_workload()])
    assert row["bytes_loaded"] == 17248 * 65536
    assert row["bytes_saved"] == 2336 * 65536


def test_replay_reports_the_second_instance(
    use_connector: UseConnector, capsys: pytest.CaptureFixture[str]
) -> None:
    code, row = run_json(capsys, "trace", "--replay", "--input", str(SAMPLE))
    assert code == 0
    assert row["blocks_hit"] == row["blocks_matchable"] > 0
    assert row["blocks_hit"] == row["blocks_hit_ideal"] == row["blocks_verified"]
    assert row["bytes_saved"] == 0


def test_trace_reads_a_file_and_draws_a_curve(
    use_connector: UseConnector, capsys: pytest.CaptureFixture[str]
) -> None:
    code, row = run_json(capsys, "trace", "--input", str(SAMPLE), "--curve")
    assert code == 0
    assert row["tokens_per_block"] == 512
    assert row["bytes_per_block"] <= 32768
    assert [point["request"] for point in row["curve"]] == list(range(24))
    assert sum(point["hit"] for point in row["curve"]) == row["blocks_hit"] > 0
    digest = hits_digest([point["hit"] for point in row["curve"]])
    assert row["hits_digest"] == digest


def test_the_digest_is_of_compact_json() -> None:
    assert hits_digest([0, 32, 7]) == hashlib.sha256(b"[0,32,7]").hexdigest()


def test_trace_prints_text_for_people(
    use_connector: UseConnector, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "--input", str(SAMPLE)]) == 0
    out = capsys.readouterr().out
    assert "blocks reused" in out
    assert "Llama-3.1-8B" in out


def test_a_broken_connector_makes_exit_code_1_and_still_one_object(
    use_connector: UseConnector, capsys: pytest.CaptureFixture[str]
) -> None:
    use_connector("Scheduler", "FlipsAByteWorker")
    code, row = run_json(capsys, "trace", "--input", str(SAMPLE))
    assert code == 1
    assert row["failure"].startswith("I1 broken on rank 0: ")
    assert row["errors"] == 1
    # The counts of ranks that ended cannot be asked for.
    assert row["bytes_loaded"] is row["bytes_saved"] is row["saves_dropped"] is None
    assert set(row["blocks_rejected"].values()) == {None}
    assert main(["trace", "--input", str(SAMPLE)]) == 1
    out = capsys.readouterr().out
    assert "moved            not known" in out
    assert "0 B" not in out


def test_lost_hits_make_exit_code_1(
    use_connector: UseConnector, capsys: pytest.CaptureFixture[str]
) -> None:
    use_connector("BlindScheduler", "Worker")
    code = main(["trace", "--input", str(SAMPLE), "--json"])
    captured = capsys.readouterr()
    assert code == 1
    assert json.loads(captured.out)["blocks_hit"] == 0
    assert "an exact unlimited cache hits" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "VERB"),
        (["fly"], "invalid choice"),
        (["trace", "--backend", "tape"], "invalid choice"),
        (["trace", "--tp", "3"], "does not divide"),
        (["trace", "--tp", "0"], "must be positive"),
        (["trace", "--tokens-per-block", "-1"], "must be positive"),
        (["trace", "--prefill-tok-per-s", "0"], "must be positive"),
        (["trace", "--ranks", "processes"], "lives inside one process"),
        (["trace", "--input", "no/such/file"], "error: no/such/file: cannot be read (No such"),
        (["trace", "--input", "/dev/null"], "error: /dev/null: the file holds no request"),
        (["trace", "--tp", "-3"], "remedy: 1 or more"),
        (["trace", "--segment-bytes", "1 parsec"], "'1 parsec': it is not a size in bytes"),
        (["trace", "--backend", "file", "--segment-bytes", "1MB"], "1048576: too small"),
        (["demo", "--tp", "3"], "must divide"),
    ],
    ids=str,
)
def test_wrong_usage_is_exit_code_2_and_says_why(
    arguments: list[str],
    message: str,
    use_connector: UseConnector,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert_failure(capsys, 2, message, *arguments)


def test_a_refusal_of_the_connector_is_exit_code_2(
    use_connector: UseConnector, capsys: pytest.CaptureFixture[str]
) -> None:
    use_connector("Scheduler", "RefusingWorker")
    assert_failure(capsys, 2, "MC_BACKEND='tape'", "trace")


def test_a_store_that_cannot_be_reached_is_exit_code_3(
    use_connector: UseConnector, capsys: pytest.CaptureFixture[str]
) -> None:
    use_connector("Scheduler", "NoStoreWorker")
    assert_failure(capsys, 3, "no store at", "trace")


def test_a_store_that_is_lost_during_the_run_is_exit_code_3(
    use_connector: UseConnector, capsys: pytest.CaptureFixture[str]
) -> None:
    use_connector("BlindScheduler", "LostStoreWorker")
    code, row = run_json(capsys, "trace", "--input", str(SAMPLE))
    assert code == 3
    assert row["failure"].startswith("the store could not be reached during the run")
    assert row["blocks_matchable"] > 0, "the figures are there all the same"
    assert main(["trace", "--input", str(SAMPLE)]) == 3
    assert "saves failed 0" in capsys.readouterr().out


def test_a_defect_of_ours_is_an_object_and_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError("by us")

    monkeypatch.setattr("mooncake_trtllm.cli.trace._workload", fail)
    with pytest.raises(ZeroDivisionError):
        main(["trace", "--json"])
    failure = json.loads(capsys.readouterr().out)
    assert failure["exit_code"] == 1
    assert "by us" in failure["failure"]


def test_the_curve_needs_json(
    use_connector: UseConnector, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in ("trace", "matrix"):
        assert main([verb, "--curve"]) == 2
        assert "remedy: --json with it" in capsys.readouterr().err


def test_a_size_has_the_units_of_settings_and_says_where_it_is_without_effect(
    use_connector: UseConnector, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "--input", str(SAMPLE), "--segment-bytes", "0.5GiB"]) == 0
    told = capsys.readouterr().err
    assert f"--segment-bytes {512 << 20}: without effect on the memory back end" in told


def test_every_verb_shows_what_the_connector_logs(
    environment: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    environment.delenv("MC_STAGING_BYTES")
    for ranks in ("threads", "processes"):
        for option, wanted in (([], False), (["--verbose"], True)):
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "mooncake_trtllm", "trace", "--ranks", ranks),
                    *("--backend", "memory" if ranks == "threads" else "file"),
                    *("--requests", "1", "--json", *option),
                ],
                capture_output=True,
                text=True,
                check=True,
                timeout=120,
            )
            for line in ("settings in force", "keyspace"):
                assert (line in done.stderr) == wanted, (ranks, option, done.stderr)


def test_selfcheck_reports_a_native_module_that_does_not_load() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mooncake_trtllm", "selfcheck", "--json"],
        # The sources alone have none.
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    failed = {check["name"] for check in json.loads(done.stdout)["checks"] if not check["ok"]}
    assert {"native_module", "settings"} <= failed


def test_a_signal_while_modules_are_loaded_shows_no_traceback() -> None:
    program = (
        "import signal, sys\n"
        # A shell's background job, a CI run for one, begins with it ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'mooncake_trtllm.cli.main':\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from mooncake_trtllm.__main__ import main\n"
        "sys.exit(main(['trace', '--json']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (130, "interrupted; nothing was started\n")
    assert json.loads(done.stdout)["exit_code"] == 130


def test_both_ways_to_call_are_one(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "mooncake_trtllm", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert result.stdout.startswith("mooncake-trtllm ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_and_all_its_processes(number: signal.Signals, tmp_path: Path) -> None:
    """A rank that hangs is a process; the verb is told to end while it waits for it."""
    program = (
        "import sys\n"
        "from mooncake_trtllm.simulator import config\n"
        "names = config.ConnectorNames('simulator.connectors.broken_connectors', "
        "'Scheduler', 'TellsAndHangsWorker')\n"
        "config._default_names = lambda: names\n"
        "from mooncake_trtllm.cli import stores, trace\n"
        "trace._workload = lambda _: trace.agentic_workload()\n"
        "from mooncake_trtllm.cli.main import main\n"
        "sys.exit(main(['trace', '--tp', '2', '--ranks', 'processes', '--json']))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "python")}
    fifo = tmp_path / "pid"
    os.mkfifo(fifo)
    environment["SIM_TEST_FIFO"] = str(fifo)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        # Blocks until the rank is inside the callback that never returns.
        pid = int(fifo.read_text())
        process.send_signal(number)
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert json.loads(out)["exit_code"] == 128 + number
    assert "everything that was started is stopped" in errors
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
