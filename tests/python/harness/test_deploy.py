"""run_ctx_gen_store.sh, as users run it, on real Mooncake."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import alive, descendants, wait_until, wait_until_gone

from mooncake_trtllm.deploy.__main__ import main
from mooncake_trtllm.deploy.run_folder import RunFolder
from mooncake_trtllm.deploy.showcase import _Stage

BENCHMARKS = Path(__file__).parents[3] / "benchmarks" / "tensorrt_llm_kv_connector"
SCRIPT = BENCHMARKS / "deploy" / "run_ctx_gen_store.sh"
SEGMENT = ("--segment-bytes", str(64 << 20))
CANARY = """
import os
from mooncake_trtllm import _native
# Opening a client puts, gets, compares and removes an object.
store = _native.open_mooncake_store(
    os.environ["MOONCAKE_MASTER"],
    metadata_server=os.environ["MOONCAKE_TE_META_DATA_SERVER"],
    local_hostname=os.environ["MOONCAKE_LOCAL_HOSTNAME"],
)
store.close(5.0)
"""


@pytest.fixture(autouse=True)
def users_environment(environment: pytest.MonkeyPatch) -> None:
    """Nothing set: what a user meets on a fresh machine."""
    environment.delenv("MC_BACKEND")
    environment.delenv("MC_STAGING_BYTES")
    environment.setenv("PYTHON", sys.executable)


def script(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPT), "--run-dir", str(folder), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def pids(folder: Path) -> list[int]:
    record = RunFolder(folder).read()
    assert record is not None
    return [record.keeper.pid, record.master.pid, record.storage.pid]


def test_the_script_is_sound_shell() -> None:
    checkers = [["bash", "-n", str(SCRIPT)]]
    if shutil.which("shellcheck"):
        checkers.append(["shellcheck", str(SCRIPT)])
    for command in checkers:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert os.access(SCRIPT, os.X_OK)


def test_servers_are_started_with_their_template(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["--run-dir", str(tmp_path / "run"), "--configs", str(BENCHMARKS / "configs")]
    for role, port in (("ctx", "8001"), ("gen", "8002")):
        command = [*base, role, "a model", "--tp-size", "2", "--dry-run", "--", "--host", "::"]
        assert main(command) == 0
        note, line = capsys.readouterr().out.splitlines()
        assert note.startswith("# no store is up: engines would use a folder of this host, ")
        words = shlex.split(line)
        assert words[:4] == ["trtllm-serve", "a model", "--backend", "pytorch"]
        assert words[words.index("--tp_size") + 1] == "2"
        assert words[words.index("--port") + 1] == port
        config = Path(words[words.index("--extra_llm_api_options") + 1])
        assert config.samefile(BENCHMARKS / "configs" / f"{role}.yaml")
        assert words[-2:] == ["--host", "::"]


def test_a_server_needs_a_store_and_the_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = ["--run-dir", str(tmp_path / "run"), "--configs", str(BENCHMARKS / "configs")]
    assert main([*base, "gen", "m"]) == 3
    assert "none is up" in capsys.readouterr().err
    monkeypatch.setenv("MOONCAKE_MASTER", "127.0.0.1:1")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([*base, "gen", "m"]) == 2
    assert "trtllm-serve is not on PATH" in capsys.readouterr().err


def test_a_server_gets_the_store_that_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for trtllm-serve writes down what it was given."""
    program = tmp_path / "trtllm-serve"
    program.write_text('#!/bin/sh\necho "$MOONCAKE_MASTER" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MOONCAKE_MASTER", "127.0.0.1:1")
    done = script(tmp_path / "run", "ctx", "m", "--port", "9")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("127.0.0.1:1 m --backend pytorch --tp_size 1 --port 9 ")


@pytest.mark.mooncake
def test_a_store_goes_up_once_serves_and_goes_down(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = script(folder, "up", *SEGMENT)
    assert done.returncode == 0, done.stderr
    try:
        running = pids(folder)
        assert all(alive(pid) for pid in running)
        again = script(folder, "up", *SEGMENT)
        assert again.returncode == 2
        assert "a store is up already" in again.stderr
        assert pids(folder) == running
        status = script(folder, "status")
        assert (status.returncode, status.stdout.splitlines()[-1]) == (0, "healthy")
        use = (
            f'eval "$({shlex.quote(str(SCRIPT))} --run-dir {shlex.quote(str(folder))} env)" '
            f"&& {shlex.quote(sys.executable)} -c {shlex.quote(CANARY)}"
        )
        client = subprocess.run(["bash", "-c", use], capture_output=True, text=True, check=False)
        assert client.returncode == 0, client.stderr
        server = script(folder, "ctx", "m", "--dry-run").stdout
        assert server.startswith("MOONCAKE_MASTER=127.0.0.1:")
    finally:
        down = script(folder, "down")
    assert down.returncode == 0, down.stderr
    assert "in shells that took its `env`: unset MOONCAKE_MASTER" in down.stdout
    assert not any(alive(pid) for pid in running)
    assert script(folder, "down").stdout == "no store is up\n"


@pytest.mark.mooncake
def test_with_http_metadata_and_after_a_crash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGKILL of the keeper takes its children along; the record it leaves hinders nobody."""
    folder = ["--run-dir", str(tmp_path / "run")]
    assert main([*folder, "up", "--metadata", "http", *SEGMENT]) == 0
    running = pids(tmp_path / "run")
    capsys.readouterr()
    assert main([*folder, "env"]) == 0
    lines = capsys.readouterr().out
    (server,) = re.findall(r"^export MOONCAKE_TE_META_DATA_SERVER=(.*)$", lines, re.MULTILINE)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metadata", server)
    client = subprocess.run(
        ["bash", "-c", f"{lines}\nexec {shlex.quote(sys.executable)} -c {shlex.quote(CANARY)}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert client.returncode == 0, client.stderr
    os.kill(running[0], signal.SIGKILL)
    assert wait_until_gone(running)
    assert main([*folder, "status"]) == 3
    assert RunFolder(tmp_path / "run").read() is not None
    assert main([*folder, "up", *SEGMENT]) == 0
    running = pids(tmp_path / "run")
    os.kill(running[1], signal.SIGKILL)
    assert wait_until_gone(running[1:2])
    assert main([*folder, "status"]) == 3
    assert "(DEAD)" in capsys.readouterr().out
    assert main([*folder, "down"]) == 0
    assert not any(alive(pid) for pid in running)


@pytest.mark.mooncake
def test_a_store_that_cannot_start_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["--run-dir", str(tmp_path / "run")]
    # 192.0.2.0/24 is for documentation: no machine has an address of it.
    assert main([*folder, "up", "--host", "192.0.2.1", *SEGMENT]) == 3
    assert "cannot listen on 192.0.2.1" in capsys.readouterr().err
    assert not RunFolder(tmp_path / "run").in_use()
    assert main([*folder, "up", "--segment-bytes", "1"]) == 2


def test_a_port_that_is_taken_or_none_is_said_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    up = ["--run-dir", str(tmp_path / "run"), "up"]
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        for what in ("rpc", "admin", "storage", "metadata"):
            assert main([*up, f"--{what}-port", port]) == 2
            said = capsys.readouterr().err
            assert f"port {port} is taken on 127.0.0.1; remedy: choose another --{what}" in said
    assert main([*up, "--rpc-port", "65536"]) == 2
    assert "--rpc-port 65536: no port from 1 to 65535" in capsys.readouterr().err
    assert main([*up, "--rpc-port", port, "--admin-port", port]) == 2
    assert f"port {port} is asked for twice" in capsys.readouterr().err
    assert not RunFolder(tmp_path / "run").in_use()


def test_the_size_of_a_store_is_written_as_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    up = ["--run-dir", str(tmp_path / "run"), "up", "--segment-bytes"]
    assert main([*up, "15MiB"]) == 2
    assert "--segment-bytes 15728640: too small" in capsys.readouterr().err
    assert main([*up, "16384GiB"]) == 2
    said = capsys.readouterr().err
    assert "17592186044416 bytes for --segment-bytes are too much for this machine" in said
    assert "remedy: fewer bytes, or a larger machine" in said
    assert not (tmp_path / "run").exists()
    with pytest.raises(SystemExit) as ended:
        main([*up, "1 parsec"])
    assert ended.value.code == 2
    assert "'1 parsec': it is not a size in bytes from 0 to" in capsys.readouterr().err


def showcase(tmp_path: Path, *arguments: str) -> list[str]:
    return [
        *(str(SCRIPT), "--run-dir", str(tmp_path / "run")),
        *("showcase", "--quick", "--backends", "memory", "--granularity", "block", "--tp", "1"),
        *("--out", str(tmp_path / "out"), *arguments),
    ]


@pytest.mark.mooncake
@pytest.mark.slow
def test_showcase_passes_its_gate_and_renders_a_report(
    tmp_path: Path, environment: pytest.MonkeyPatch
) -> None:
    # A store of the user's is no store of the showcase.
    environment.setenv("MOONCAKE_CONFIG_PATH", str(tmp_path / "none.json"))
    environment.setenv("MOONCAKE_MASTER", "127.0.0.1:1")
    done = subprocess.run(
        showcase(tmp_path, "--metadata", "http"),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in done.stdout
    assert "OK (exit status 0)" in done.stdout
    assert "/metadata" in done.stdout
    out = tmp_path / "out"
    trace = json.loads((out / "trace.json").read_text())
    assert (trace["backend"], trace["tp"], trace["ranks"]) == ("mooncake", 2, "processes")
    matrix = json.loads((out / "matrix.json").read_text())
    assert matrix["hit_ratio_identical"] is True
    assert trace["hits_digest"] == matrix["rows"][0]["hits_digest"]
    assert f"TTFT x modeled {trace['ttft_speedup_modeled']}" in done.stdout
    report = (out / "report.html").read_text()
    assert report.count("data:image/svg+xml;base64,") == 5
    assert (out / "warm_up.png").is_file()


@pytest.mark.mooncake
@pytest.mark.slow
def test_ctrl_c_during_showcase_leaves_no_process(tmp_path: Path) -> None:
    with subprocess.Popen(
        showcase(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("== selfcheck"):
                break
        # Master, storage and the verb.
        assert wait_until(lambda: len(descendants(process.pid)) >= 3)
        children = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert "everything that was started is stopped" in errors
    assert wait_until_gone(children)


def test_a_stage_knows_nothing_of_the_callers_settings(
    tmp_path: Path, environment: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kept"
    environment.setenv("MC_BACKEND", "file")
    environment.setenv("MC_FILE_PATH", str(folder))
    environment.setenv("MC_PAGE_SALT", "the caller's")
    environment.setenv("MOONCAKE_MASTER", "127.0.0.1:1")
    stage = _Stage(tmp_path, {"MOONCAKE_PROTOCOL": "tcp"})
    assert stage.run("selfcheck", "selfcheck", "--backend", "memory") == 0
    assert not folder.exists()
    child = stage._child_environment()
    settings = {name for name in child if name.startswith(("MC_", "MOONCAKE_"))}
    assert settings == {"MOONCAKE_PROTOCOL"}
    assert child["PATH"] == os.environ["PATH"]
    checks = {check["name"]: check for check in (stage.result("selfcheck") or {})["checks"]}
    assert "MOONCAKE_PROTOCOL=tcp (set for this run)" in checks["settings"]["detail"]


def test_a_stage_that_ended_without_a_result_has_none(tmp_path: Path) -> None:
    stage = _Stage(tmp_path, {})
    for content, found in (
        ('{"schema": "error/1"}', None),
        ('{"schema": "a/1"}', {"schema": "a/1"}),
    ):
        (tmp_path / "trace.json").write_text(content)
        assert stage.result("trace") == found
    assert stage.result("matrix") is None
