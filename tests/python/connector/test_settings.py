"""Settings through Python: files, messages, what is logged. The core tests the parsing itself."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from support.processes import run_python

from mooncake_trtllm import KvConnectorConfigError, KvConnectorStoreError, _stores
from mooncake_trtllm._log import log
from mooncake_trtllm.settings import load_settings


@pytest.fixture(autouse=True)
def nothing_set(environment: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    environment.delenv("MC_STAGING_BYTES")
    return environment


def settings_file(
    folder: Path, environment: pytest.MonkeyPatch, text: str, name: str = "kv.toml"
) -> Path:
    path = folder / name
    path.write_text(text)
    environment.setenv("MC_KV_CONFIG", str(path))
    return path


def test_defaults() -> None:
    settings = load_settings()
    assert settings.backend == "memory"
    assert (settings.model_revision, settings.key_epoch, settings.key_secret) == (None, 0, b"")
    assert settings.lora_ids == {}
    assert settings.staging_bytes == 256 << 20
    assert settings.save_queue_bytes == 128 << 20
    assert settings.lookup_deadline_s == 1.0
    # With the default every callback ends within 5 s, a load included.
    assert settings.load_deadline_s < 5.0
    assert (settings.rank, settings.world_size, settings.disable_file) == (None, None, None)
    assert not settings.disabled()


@pytest.mark.parametrize("name", ["kv.toml", "kv.json"])
def test_a_file(name: str, environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    values = {"MC_KEY_EPOCH": 7, "MC_MODEL_REVISION": "r1", "MC_STAGING_BYTES": "8MB"}
    text = (
        json.dumps(values)
        if name.endswith("json")
        else "\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items())
    )
    settings_file(tmp_path, environment, text, name)
    settings = load_settings()
    assert (settings.key_epoch, settings.model_revision) == (7, "r1")
    assert settings.staging_bytes == 8 << 20


def test_the_environment_counts_before_the_file(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings_file(tmp_path, environment, "MC_KEY_EPOCH = 7")
    environment.setenv("MC_KEY_EPOCH", "9")
    assert load_settings().key_epoch == 9


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("MC_BACKENT = 'memory'", ["MC_BACKENT", "MC_BACKEND"]),
        ("MC_KEY_EPOCH = '5'", ["MC_KEY_EPOCH", "whole number"]),
        ("MC_STAGING_BYTES = true", ["MC_STAGING_BYTES"]),
        ("MC_KEY_EPOCH = -1", ["MC_KEY_EPOCH"]),
        ("not toml at all", ["kv.toml"]),
    ],
)
def test_mistakes_in_the_file(
    text: str, words: list[str], environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings_file(tmp_path, environment, text)
    with pytest.raises(KvConnectorConfigError) as caught:
        load_settings()
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("MC_BACKEND", "redis", ["MC_BACKEND", "redis", "memory"]),
        ("MC_FILE_MAX_BYTES", "1", ["MC_FILE_MAX_BYTES", "1"]),
        ("MC_PROMISE", "firm", ["MC_PROMISE", "firm", "staged"]),
        ("MC_PREFILL_TOK_PER_S", "fast", ["MC_PREFILL_TOK_PER_S", "fast"]),
        ("MC_MIN_HIT_BLOCKS", "0", ["MC_MIN_HIT_BLOCKS", "0"]),
        ("MC_KEY_EPOCH", "soon", ["MC_KEY_EPOCH", "soon"]),
        ("MC_STAGING_BYTES", "12 parsecs", ["MC_STAGING_BYTES", "12 parsecs"]),
        ("MC_METRICS_PORT", "65536", ["MC_METRICS_PORT", "65536"]),
        (
            "MC_KV_CONFIG",
            "/nowhere/kv.toml",
            ["MC_KV_CONFIG=/nowhere/kv.toml", "create the file, or unset MC_KV_CONFIG"],
        ),
        (
            "MC_KEY_SECRET_FILE",
            "/nowhere/s",
            ["MC_KEY_SECRET_FILE=/nowhere/s", "create the file, or unset MC_KEY_SECRET_FILE"],
        ),
        (
            "MC_LORA_IDS",
            "/nowhere/l",
            ["MC_LORA_IDS=/nowhere/l", "create the file, or unset MC_LORA_IDS"],
        ),
        (
            "MOONCAKE_CONFIG_PATH",
            "/nowhere/m",
            ["MOONCAKE_CONFIG_PATH=/nowhere/m", "create the file, or unset MOONCAKE_CONFIG_PATH"],
        ),
    ],
)
def test_mistakes_in_the_environment(
    name: str, value: str, words: list[str], environment: pytest.MonkeyPatch
) -> None:
    environment.setenv(name, value)
    with pytest.raises(KvConnectorConfigError) as caught:
        load_settings()
    assert [word for word in words if word not in str(caught.value)] == []


def test_variables_of_others_may_hold_any_bytes(environment: pytest.MonkeyPatch) -> None:
    """A file name in Latin-1 somewhere in the environment is none of our business."""
    before = load_settings().core.describe()
    environment.setenv("UNRELATED", os.fsdecode(b"M\xfcnchen"))
    environment.setenv(os.fsdecode(b"\xff_NAME"), "x")
    assert load_settings().core.describe() == before


@pytest.mark.parametrize("name", ["MC_MODEL_REVISION", "MC_DISABLE_FILE", "MOONCAKE_MASTER"])
def test_our_variables_must_be_text(name: str, environment: pytest.MonkeyPatch) -> None:
    environment.setenv(name, os.fsdecode(b"M\xfcnchen"))
    with pytest.raises(KvConnectorConfigError, match=rf"{name}=.*UTF-8.*Remedy"):
        load_settings()


def test_a_near_miss_in_the_environment_is_told_once(
    environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environment.setenv("MC_BACKNED", "memory")
    environment.setenv("MC_TCP_ENABLE_CONNECTION_POOL", "1")  # Mooncake's own
    with caplog.at_level(logging.WARNING, "mooncake_trtllm"):
        load_settings()
        load_settings()
    told = [record.getMessage() for record in caplog.records]
    assert len([text for text in told if "MC_BACKNED" in text and "MC_BACKEND" in text]) == 1
    assert not [text for text in told if "MC_TCP" in text]


def test_without_a_store_the_folder_is_told(
    make_engine: Any,
    environment: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    environment.setenv("MC_BACKEND", "")
    environment.setenv("MC_FILE_PATH", str(tmp_path / "store"))
    environment.setenv("MC_FILE_MAX_BYTES", "32MB")
    environment.setenv("MC_STAGING_BYTES", "1MB")
    with caplog.at_level(logging.INFO, "mooncake_trtllm"):
        make_engine()
    assert "MC_BACKEND=file (default)" in caplog.text
    assert f"file store {tmp_path / 'store'}: 0 bytes used of at most {32 << 20}" in caplog.text


def test_a_master_selects_the_store(environment: pytest.MonkeyPatch) -> None:
    environment.delenv("MC_BACKEND")
    environment.setenv("MOONCAKE_MASTER", "127.0.0.1:50051")
    assert load_settings().backend == "mooncake"


def test_the_stores_own_file_selects_the_store(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "mooncake.json"
    own.write_text(json.dumps({"master_server_address": "10.0.0.1:50051", "protocol": "rdma"}))
    environment.delenv("MC_BACKEND")
    settings_file(tmp_path, environment, f"MOONCAKE_CONFIG_PATH = '{own}'")
    settings = load_settings()
    assert settings.backend == "mooncake"
    assert settings.core.text("MOONCAKE_MASTER") == "10.0.0.1:50051"
    assert settings.core.text("MOONCAKE_PROTOCOL") == "rdma"


def test_the_effective_configuration_is_logged_once_with_sources(
    environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environment.setenv("MC_KEY_EPOCH", "424242")
    with caplog.at_level(logging.INFO, "mooncake_trtllm"):
        load_settings()
        load_settings()
    lines = [r.getMessage() for r in caplog.records if "MC_KEY_EPOCH=424242" in r.getMessage()]
    assert len(lines) == 1
    assert "MC_KEY_EPOCH=424242 (environment)" in lines[0]
    assert "MC_PROMISE=staged (default)" in lines[0]


def test_the_stores_own_file_is_named_as_the_user_did(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "mk2.json"
    own.write_text("{x")
    environment.setenv("MOONCAKE_CONFIG_PATH", str(own))
    with pytest.raises(KvConnectorConfigError) as caught:
        load_settings()
    assert f"file '{own}' of MOONCAKE_CONFIG_PATH cannot be read: " in str(caught.value)
    assert "json.exception" not in str(caught.value)


SHOWN = """
import logging
import sys
{setup}
from mooncake_trtllm._log import log
log.essential_once("settings in force: %s", "x=1")
log.essential_once("settings in force: %s", "x=1")
"""


@pytest.mark.parametrize(
    ("setup", "lines"),
    [
        ("", 1),
        ("logging.basicConfig(level=logging.WARNING)", 1),
        ("logging.basicConfig(level=logging.INFO)", 1),
        ("logging.getLogger('mooncake_trtllm').setLevel(logging.WARNING)", 0),
        ("logging.basicConfig(); logging.getLogger('mooncake_trtllm').setLevel(logging.INFO)", 1),
        ("sys.stderr = None", 0),
    ],
)
def test_an_operator_sees_the_essential_lines_without_configuring_anything(
    setup: str, lines: int
) -> None:
    done = run_python(SHOWN.format(setup=setup))
    assert (
        done.stderr.count("mooncake_trtllm: settings in force: x=1\n")
        + done.stderr.count("mooncake_trtllm:settings in force: x=1\n")
        == lines
    ), done.stderr
    assert done.stdout == ""


def test_settings_and_keyspace_are_essential(make_engine: Any, environment: Any) -> None:
    told: list[str] = []
    environment.setattr(type(log), "essential", lambda _, text, *args: told.append(text % args))
    environment.setenv("MC_KEY_EPOCH", "434343")  # no test has logged these settings before
    make_engine()
    assert [text for text in told if text.startswith("settings in force: MC_BACKEND=memory")]
    assert [text for text in told if text.startswith("rank 0 of 1: ") and "keyspace" in text]


@pytest.mark.parametrize(("devices", "warned"), [(["mlx5_0"], False), ([], True), (None, True)])
def test_rdma_without_a_device_is_told(
    devices: list[str] | None,
    warned: bool,
    environment: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    listed = tmp_path / str(len(devices or ())) / "infiniband"
    for device in devices or ():
        (listed / device).mkdir(parents=True)
    if devices == []:
        listed.mkdir(parents=True)
    environment.setattr(_stores, "_RDMA_DEVICES", listed)
    environment.setenv("MC_BACKEND", "mooncake")
    environment.setenv("MOONCAKE_MASTER", "127.0.0.1:1")
    environment.setenv("MOONCAKE_PROTOCOL", "RDMA")
    with (
        caplog.at_level(logging.WARNING, "mooncake_trtllm"),
        pytest.raises((KvConnectorStoreError, KvConnectorConfigError)),
    ):
        _stores.StoreRegistry().acquire(load_settings())
    assert ("no RDMA device" in caplog.text) == warned


def test_the_secret_is_read_and_not_logged(
    environment: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"correct horse\n")
    environment.setenv("MC_KEY_SECRET_FILE", str(path))
    with caplog.at_level(logging.DEBUG, "mooncake_trtllm"):
        settings = load_settings()
    assert settings.key_secret == b"correct horse"
    assert "correct horse" not in caplog.text
    path.write_bytes(b" \n")
    with pytest.raises(KvConnectorConfigError, match="it is empty"):
        load_settings()


def test_adapters(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "lora.json"
    environment.setenv("MC_LORA_IDS", str(path))
    path.write_text('{"3": "sha256:aa", "12": "sha256:bb"}')
    assert load_settings().lora_ids == {3: "sha256:aa", 12: "sha256:bb"}
    for bad in (
        '{"x": "sha256:aa"}',
        '{"3": ""}',
        '{"3": 5}',
        "[1]",
        "{",
        "[" * 100_000,
        '{"3": "sha256:aa", "3": "sha256:bb"}',
        '{"3": "sha256:aa", "03": "sha256:bb"}',
        '{"1_0": "sha256:aa"}',
        '{"3": "\\ud800"}',
        '{"%s": "sha256:aa"}' % ("9" * 5000),
    ):
        path.write_text(bad)
        with pytest.raises(KvConnectorConfigError, match=r"MC_LORA_IDS.*Remedy"):
            load_settings()


def test_the_switch_needs_no_restart(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    switch = tmp_path / "off"
    environment.setenv("MC_DISABLE_FILE", str(switch))
    settings = load_settings()
    assert not settings.disabled()
    switch.touch()
    assert settings.disabled()
    switch.unlink()
    assert not settings.disabled()
