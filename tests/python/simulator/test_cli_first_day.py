"""What newcomers meet: settings that a verb cannot show its job with, and wrong words."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mooncake_trtllm.cli import run_settings
from mooncake_trtllm.cli.demo_steps import Scene
from mooncake_trtllm.cli.exits import BROKEN, exit_code
from mooncake_trtllm.cli.main import main
from mooncake_trtllm.simulator import SimulationError

SAMPLE = Path(__file__).parents[2] / "data" / "fast25_sample.jsonl"
HOSTILE = {
    "MC_MIN_HIT_BLOCKS": "33",
    "MC_STAGE_DEADLINE_MS": "1",
    "MC_LOAD_DEADLINE_MS": "1",
    "MC_PREFILL_TOK_PER_S": "1000000",
    "MC_MEMORY_BYTES": "2097152",
}
NOBODYS_ADDRESS = "192.0.2.1"  # for documentation; no host has it


@pytest.fixture(autouse=True)
def users_environment(environment: pytest.MonkeyPatch) -> None:
    """As a user who has set nothing."""
    environment.delenv("MC_STAGING_BYTES")
    environment.delenv("MC_BACKEND")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    """Exit code, object, and what stood on standard error."""
    capsys.readouterr()
    code = main([*arguments, "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out), captured.err


@pytest.mark.parametrize("verb", ["demo", "selfcheck"])
def test_settings_that_would_cost_hits_are_replaced_aloud(
    verb: str, capsys: pytest.CaptureFixture[str], environment: pytest.MonkeyPatch
) -> None:
    for name, value in HOSTILE.items():
        environment.setenv(name, value)
    code, report, errors = run(capsys, verb, "--backend", "memory")
    assert (code, report["ok"]) == (0, True)
    for name, value in HOSTILE.items():
        assert re.search(
            rf"^{verb} sets {name}=\d+; was {value} \(environment\)$", errors, re.MULTILINE
        )


def test_a_simulation_that_cannot_go_on_is_a_result_and_no_traceback(
    capsys: pytest.CaptureFixture[str], environment: pytest.MonkeyPatch
) -> None:
    assert exit_code(SimulationError("why")) == BROKEN

    def stop(_: Scene) -> Any:
        raise SimulationError("nothing was promised")

    environment.setattr(Scene, "steps", stop)
    code, report, errors = run(capsys, "demo", "--backend", "memory")
    assert (code, report["failure"]) == (1, "nothing was promised")
    assert "Traceback" not in errors


@pytest.mark.parametrize("verb", ["demo", "selfcheck"])
@pytest.mark.parametrize("options", [[], ["--tp", "1", "--layer-granularity"]])
def test_staging_memory_too_small_for_a_verb_is_exit_code_2_with_the_least(
    verb: str,
    options: list[str],
    capsys: pytest.CaptureFixture[str],
    environment: pytest.MonkeyPatch,
) -> None:
    words = (verb, "--backend", "memory", *options)
    for name, little in (("MC_STAGING_BYTES", 65536), ("MC_SAVE_QUEUE_BYTES", 4096)):
        environment.setenv(name, str(little))
        began = time.monotonic()
        code, report, _ = run(capsys, *words)
        assert time.monotonic() - began < 30
        said = json.dumps(report)
        assert code == 2
        assert f"{name}={little}: too small for" in said
        (least,) = re.findall(r"(\d+) or more, or unset", said)
        environment.setenv(name, least)
        code, report, _ = run(capsys, *words)
        assert (code, report["ok"]) == (0, True), name


@pytest.mark.parametrize(
    "words",
    [
        ("trace", "--tp", "2", "--requests", "2", "--backend", "memory"),
        ("trace", "--tp", "2", "--requests", "2", "--backend", "file", "--ranks", "processes"),
        ("demo", "--backend", "file"),
        ("selfcheck", "--backend", "memory"),
    ],
)
def test_an_address_that_ranks_cannot_be_met_at_is_exit_code_2(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], environment: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        for address, reason in (
            (f"{NOBODYS_ADDRESS}:50060", "Cannot assign requested address"),
            (NOBODYS_ADDRESS, "Cannot assign requested address"),
            (taken, "Address already in use"),
        ):
            environment.setenv("MC_STAGE_ADDRESS", address)
            code, report, _ = run(capsys, *words)
            said = json.dumps(report)
            assert code == 2
            assert f"MC_STAGE_ADDRESS={address}: cannot listen for ranks there ({reason})" in said
            assert "an address of this machine and a free port" in said


def test_the_instances_of_a_demo_do_not_fight_for_one_port(
    capsys: pytest.CaptureFixture[str], environment: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    environment.setenv("MC_STAGE_ADDRESS", f"127.0.0.1:{port}")
    code, _, errors = run(capsys, "demo", "--backend", "memory")
    assert code == 0
    assert f"demo sets MC_STAGE_ADDRESS=127.0.0.1; was 127.0.0.1:{port} (environment)" in errors


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("127.0.0.1", ("127.0.0.1", 0)),
        ("127.0.0.1:50060", ("127.0.0.1", 50060)),
        ("::1", ("::1", 0)),
        ("[::1]", ("::1", 0)),
        ("[::1]:50060", ("::1", 50060)),
    ],
)
def test_addresses_are_read_as_settings_have_them(text: str, found: tuple[str, int]) -> None:
    assert run_settings._host_and_port(text) == found


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_output_that_takes_nothing_is_one_line(options: list[str], unbuffered: str) -> None:
    words = ["trace", "--backend", "memory", "--input", str(SAMPLE), "--requests", "2", *options]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mooncake_trtllm", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "standard output: the result could not be written (No space left on device)" in line


@pytest.mark.parametrize("options", [[], ["--json"], ["--nonsense"]])
def test_closed_outputs_change_no_exit_code(options: list[str]) -> None:
    words = ["trace", "--backend", "memory", "--input", str(SAMPLE), "--requests", "2", *options]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", sys.executable, "-m", "mooncake_trtllm", *words],
        check=False,
        timeout=60,
    )
    assert done.returncode == (2 if "--nonsense" in options else 0)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:99999", "'99999' is no port from 1 to 65535"),
        (":65537", "it names no host"),
        ("foo", "it names no port"),
        ("", "it names no port"),
        ("127.0.0.1", "it names no port"),
        ("127.0.0.1:0", "'0' is no port from 1 to 65535"),
        ("127.0.0.1:", "'' is no port from 1 to 65535"),
        (":9400", "it names no host"),
        ("http://127.0.0.1:9400", "'http://127.0.0.1' is no host"),
        ("127.0.0.1:9400/explain", "'9400/explain' is no port from 1 to 65535"),
        ("[::1]", "it names no port"),
        ("::1:9400", "'::1' is no host"),
    ],
)
def test_explain_wants_host_and_port(
    address: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, failure, _ = run(capsys, "explain", "--address", address)
    assert code == 2
    assert failure["failure"].startswith(f"--address {address}: {reason}; remedy: HOST:PORT")


def test_explain_takes_every_kind_of_host(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    for host in ("127.0.0.1", "[::1]", "localhost"):
        code, failure, _ = run(capsys, "explain", "--address", f"{host}:{port}")
        assert code == 3
        assert "no engine answers there" in failure["failure"]
