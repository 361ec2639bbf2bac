"""How the verbs meet the settings of their user: followed, checked, and replaced aloud."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from support.fake_mooncake import free_address

from mooncake_trtllm import settings
from mooncake_trtllm._set_by import described, marked, run_sets
from mooncake_trtllm.cli import environment as environment_report
from mooncake_trtllm.cli.main import main
from mooncake_trtllm.cli.private_folder import PrivateFolder
from mooncake_trtllm.errors import KvConnectorConfigError

SAMPLE = Path(__file__).parents[2] / "data" / "fast25_sample.jsonl"
TRACE = ("trace", "--input", str(SAMPLE), "--requests", "4")


@pytest.fixture(name="unset", autouse=True)
def unset_fixture(environment: pytest.MonkeyPatch) -> None:
    """As a user who has set nothing."""
    environment.delenv("MC_STAGING_BYTES")
    environment.delenv("MC_BACKEND")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, list[str]]:
    """Exit code, object, and the lines about replaced settings."""
    capsys.readouterr()
    code = main([*arguments, "--json"])
    captured = capsys.readouterr()
    told = [line for line in captured.err.splitlines() if " sets " in line]
    return code, json.loads(captured.out), told


def test_without_any_setting_it_is_the_memory_and_nothing_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, row, told = run(capsys, *TRACE)
    assert (code, row["backend"], told) == (0, "memory", [])


def test_the_back_end_of_the_environment_is_followed(
    capsys: pytest.CaptureFixture[str], environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment.setenv("MC_BACKEND", "file")
    environment.setenv("MC_FILE_PATH", str(tmp_path / "mine"))
    code, row, told = run(capsys, *TRACE)
    assert (code, row["backend"], told) == (0, "file", [])
    assert (tmp_path / "mine").is_dir()


def test_the_back_end_and_the_folder_of_the_file_are_followed(
    capsys: pytest.CaptureFixture[str], environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "kv.toml"
    own.write_text(f"MC_BACKEND = 'file'\nMC_FILE_PATH = '{tmp_path / 'mine'}'\n")
    environment.setenv("MC_KV_CONFIG", str(own))
    code, row, told = run(capsys, *TRACE)
    assert (code, row["backend"], told) == (0, "file", [])
    assert (tmp_path / "mine").is_dir()


@pytest.mark.parametrize("verb", ["trace", "demo", "timeline"])
@pytest.mark.parametrize("place", ["environment", "file", "store file"])
def test_a_master_is_followed_wherever_it_stands(
    verb: str,
    place: str,
    capsys: pytest.CaptureFixture[str],
    environment: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    pytest.importorskip("mooncake.store")
    master = free_address()
    if place == "environment":
        environment.setenv("MOONCAKE_MASTER", master)
    elif place == "file":
        (tmp_path / "kv.toml").write_text(f"MOONCAKE_MASTER = '{master}'")
        environment.setenv("MC_KV_CONFIG", str(tmp_path / "kv.toml"))
    else:
        (tmp_path / "mk.json").write_text(json.dumps({"master_server_address": master}))
        environment.setenv("MOONCAKE_CONFIG_PATH", str(tmp_path / "mk.json"))
    code, failure, _ = run(capsys, verb)
    assert code == 3, "nothing listens there, and nothing else was used"
    assert master in failure["failure"]
    if place == "file":
        assert f"(from {tmp_path / 'kv.toml'})" in failure["failure"]
    if place == "store file":
        assert f"(from {tmp_path / 'mk.json'}, master_server_address)" in failure["failure"]


@pytest.mark.parametrize("verb", ["trace", "demo", "timeline", "matrix"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MC_BACKEND", "redis"),
        ("MC_LOAD_DEADLINE_MS", "soon"),
        ("MC_KV_CONFIG", "/nowhere/kv.toml"),
        ("MOONCAKE_CONFIG_PATH", "/nowhere/mk.json"),
    ],
)
def test_a_wrong_setting_is_exit_code_2_even_where_a_verb_would_replace_it(
    verb: str,
    name: str,
    value: str,
    capsys: pytest.CaptureFixture[str],
    environment: pytest.MonkeyPatch,
) -> None:
    environment.setenv(name, value)
    for option in ([], ["--backends" if verb == "matrix" else "--backend", "memory"]):
        code, failure, _ = run(capsys, verb, *option)
        assert code == 2
        assert name in failure["failure"]


def test_selfcheck_names_a_wrong_setting_with_exit_code_2(
    capsys: pytest.CaptureFixture[str], environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("MC_BACKEND", "redis")
    code, report, _ = run(capsys, "selfcheck")
    assert (code, report["schema"]) == (2, "checks/1")
    (failed,) = (check for check in report["checks"] if not check["ok"])
    assert (failed["name"], "redis" in failed["detail"]) == ("settings", True)


def test_each_setting_that_is_replaced_is_told(
    capsys: pytest.CaptureFixture[str], environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("MOONCAKE_MASTER", "127.0.0.1:1")
    environment.setenv("MC_LOAD_DEADLINE_MS", "7")
    environment.setenv("MC_STAGE_DEADLINE_MS", "60000")
    # A model of its own, since the memory store is this process's.
    code, _, told = run(capsys, *TRACE, "--backend", "memory", "--tokens-per-block", "256")
    assert code == 0
    assert sorted(told) == [
        "trace sets MC_BACKEND=memory; was mooncake (MOONCAKE_MASTER)",
        "trace sets MC_LOAD_DEADLINE_MS=60000; was 7 (environment)",
    ]
    matrix = ("--backends", "memory", "--granularity", "block", "--requests", "2")
    _, _, told = run(capsys, "matrix", *matrix)
    assert len(told) == len(set(told)) == 2, "once, not for every combination"


def test_mooncake_alone_is_a_private_store(
    capsys: pytest.CaptureFixture[str], environment: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mooncake.store")
    environment.setenv("MC_BACKEND", "mooncake")
    code, row, told = run(capsys, *TRACE)
    assert (code, row["backend"], told) == (0, "mooncake", [])


def failed_checks(report: Any) -> list[dict[str, Any]]:
    return [check for check in report["checks"] if not check["ok"]]


def test_selfcheck_does_not_pass_a_back_end_that_no_engine_starts_with(
    capsys: pytest.CaptureFixture[str], environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("MC_BACKEND", "mooncake")
    code, report, _ = run(capsys, "selfcheck")
    assert code == 2
    (failed,) = failed_checks(report)
    assert failed["name"] == "settings"
    assert "MOONCAKE_MASTER" in failed["detail"]


def test_without_any_setting_selfcheck_looks_at_the_folder_of_engines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "engines"
    monkeypatch.setattr(settings, "default_file_path", lambda: str(folder))
    for options in ([], ["--backend", "file"]):
        code, report, _ = run(capsys, "selfcheck", "--tp", "1", *options)
        assert code == 0
        (store,) = (check for check in report["checks"] if check["name"] == "store")
        assert f"file, in the folder {folder}" in store["detail"]
    assert PrivateFolder(folder).keys()
    folder.chmod(0o777)
    code, report, _ = run(capsys, "selfcheck", "--tp", "1")
    (failed,) = failed_checks(report)
    assert (code, failed["name"]) == (2, "store")
    assert "others may write in it" in failed["detail"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("MC_KV_CONFIG", "/nowhere/kv.toml"), ("MC_LORA_IDS", "/nowhere/lora.json")],
)
def test_a_file_that_is_not_there_is_named_once(
    name: str, value: str, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv(name, value)
    with pytest.raises(KvConnectorConfigError) as raised:
        settings.load_settings()
    assert str(raised.value).count(value) == 1
    assert "No such file" in str(raised.value)
    assert raised.value.__suppress_context__, "one message, no second traceback"


def test_what_a_verb_sets_is_not_called_the_users(
    capsys: pytest.CaptureFixture[str], environment: pytest.MonkeyPatch
) -> None:
    for name, value in marked({"MOONCAKE_MASTER": "127.0.0.1:1", "MC_KEY_EPOCH": "3"}).items():
        environment.setenv(name, value)
    environment.setenv("MC_LOAD_DEADLINE_MS", "7000")
    sources = {name: source for name, _, source in described(settings.load_settings().core)}
    assert sources["MOONCAKE_MASTER"] == sources["MC_KEY_EPOCH"] == "set for this run"
    assert sources["MC_LOAD_DEADLINE_MS"] == "environment"
    assert "MC_RANK" in marked({"MC_RANK": "0"})["KVC_SET_FOR_THIS_RUN"]
    _, _, told = run(capsys, *TRACE, "--backend", "memory", "--tokens-per-block", "128")
    assert told == ["trace sets MC_LOAD_DEADLINE_MS=60000; was 7000 (environment)"]


def test_settings_of_ranks_are_marked(
    capsys: pytest.CaptureFixture[str], environment: pytest.MonkeyPatch
) -> None:
    seen: list[frozenset[str]] = []
    load = settings.load_settings

    def watch(*arguments: Any) -> Any:
        seen.append(run_sets())
        return load(*arguments)

    environment.setattr("mooncake_trtllm._instance.load_settings", watch)
    code, _, _ = run(capsys, *TRACE, "--tokens-per-block", "64")
    assert code == 0
    assert "MC_BACKEND" in seen[0]
    assert run_sets() == frozenset(), "this process has its environment back"


def test_a_host_name_without_an_address_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_name: str) -> str:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "gethostname", lambda: "box")
    monkeypatch.setattr(socket, "gethostbyname", refuse)
    check = environment_report._loopback()
    assert check.ok
    assert "the host name box does not resolve (Name or service not known)" in check.detail
    assert "/etc/hosts: 127.0.1.1 box" in check.detail


@pytest.mark.parametrize("verb", ["trace", "demo", "selfcheck", "timeline", "matrix"])
@pytest.mark.parametrize("switch", ["MC_DISABLE_FILE", "MC_SAVE_QUEUE_BYTES"])
def test_a_switch_that_leaves_nothing_to_show_is_exit_code_2(
    switch: str,
    verb: str,
    capsys: pytest.CaptureFixture[str],
    environment: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    off = tmp_path / "off"
    off.touch()
    environment.setenv(switch, str(off) if switch == "MC_DISABLE_FILE" else "0")
    code, report, _ = run(capsys, verb)
    assert code == 2
    assert switch in json.dumps(report)
    assert "remedy" in json.dumps(report)
