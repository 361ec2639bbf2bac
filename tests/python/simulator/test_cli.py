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


def exit_status(*arguments: str) -> object:
    """What the shell sees: argparse ends by itself."""
    try:
        return main(arguments)
    except SystemExit as error:
        return error.code


def test_trace_reports_what_the_product_reuses_of_the_agentic_workload(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.delenv("MC_STAGING_BYTES")
    code, row = run_json(capsys, "trace", "--backend", "memory", "--tp", "2")
    assert code == 0
    assert row["schema"] == "trace/1"
    assert (row["backend"], row["promise"], row["granularity"]) == ("memory", "leased", "block")
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
        (["trace", "--input", "no/such/file"], "cannot be read"),
        (["demo", "--tp", "3"], "must divide"),
    ],
    ids=str,
)
def test_wrong_usage_is_exit_code_2_and_prints_no_object(
    arguments: list[str],
    message: str,
    use_connector: UseConnector,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = exit_status(*arguments, "--json")
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert message in captured.err


def test_a_refusal_of_the_connector_is_exit_code_2(
    use_connector: UseConnector, capsys: pytest.CaptureFixture[str]
) -> None:
    use_connector("Scheduler", "RefusingWorker")
    assert main(["trace", "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "MC_BACKEND='tape'" in captured.err


def test_a_store_that_cannot_be_reached_is_exit_code_3(
    use_connector: UseConnector, capsys: pytest.CaptureFixture[str]
) -> None:
    use_connector("Scheduler", "NoStoreWorker")
    assert main(["trace", "--json"]) == 3
    assert "no store at" in capsys.readouterr().err


def test_both_ways_to_call_are_one(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    result = subprocess.run(
        [sys.executable, "-m", "mooncake_trtllm", "--version"],
        env=environment,
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
        "sys.exit(main(['trace', '--tp', '2', '--ranks', 'processes']))\n"
    )
    path = [str(ROOT / "python"), str(ROOT / "tests" / "python")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    fifo = tmp_path / "pid"
    os.mkfifo(fifo)
    environment["SIM_TEST_FIFO"] = str(fifo)
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        # Blocks until the rank is inside the callback that never returns.
        pid = int(fifo.read_text())
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "everything that was started is stopped" in errors
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
