"""make_kv_connector_config(): with a runtime, without one, and with names that do not exist."""

from __future__ import annotations

import importlib
import logging
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.processes import clean_environment, run_python

from mooncake_trtllm import KvConnectorConfigError, make_kv_connector_config
from mooncake_trtllm.config import ShimConnectorConfig

CLASSES = {
    "connector_scheduler_class": "MooncakeKvCacheConnectorScheduler",
    "connector_worker_class": "MooncakeKvCacheConnectorWorker",
}


@pytest.fixture(autouse=True)
def no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "tensorrt_llm"]:
        monkeypatch.delitem(sys.modules, name)


def install(monkeypatch: pytest.MonkeyPatch, config_class: Any) -> None:
    """Put a stand-in of the runtime in place whose only content is this class."""
    package, llmapi = types.ModuleType("tensorrt_llm"), types.ModuleType("tensorrt_llm.llmapi")
    package.__path__ = []
    llmapi.KvCacheConnectorConfig = config_class  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorrt_llm", package)
    monkeypatch.setitem(sys.modules, "tensorrt_llm.llmapi", llmapi)


def test_without_a_runtime_the_fields_are_the_same() -> None:
    config = make_kv_connector_config()
    assert isinstance(config, ShimConnectorConfig)
    assert config.connector_module == "mooncake.tensorrt_llm"
    assert {name: getattr(config, name) for name in CLASSES} == CLASSES
    assert (config.connector, config.server_url) == (None, None)


def test_names_of_the_configuration_lead_to_the_classes() -> None:
    import mooncake_trtllm

    config = make_kv_connector_config()
    module = importlib.import_module(config.connector_module)
    for field in CLASSES:
        name = getattr(config, field)
        assert getattr(module, name) is getattr(mooncake_trtllm, name)


def test_overrides_count() -> None:
    config = make_kv_connector_config(connector_module="my.module", server_url="http://h:1")
    assert (config.connector_module, config.server_url) == ("my.module", "http://h:1")


def test_the_runtimes_class_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class KvCacheConnectorConfig:  # as in 1.1: three required fields
        connector_module: str
        connector_scheduler_class: str
        connector_worker_class: str

    install(monkeypatch, KvCacheConnectorConfig)
    config = make_kv_connector_config()
    assert type(config) is KvCacheConnectorConfig
    assert config.connector_scheduler_class == CLASSES["connector_scheduler_class"]
    with pytest.raises(KvConnectorConfigError, match="server_url"):
        make_kv_connector_config(server_url="x")  # this version has none


def test_a_model_class_with_fields_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    class KvCacheConnectorConfig:
        model_fields = dict.fromkeys(
            ("connector_module", "connector_scheduler_class", "connector_worker_class", "novel")
        )

        def __init__(self, **values: Any) -> None:
            if set(values) - set(self.model_fields):
                raise ValueError("extra fields not permitted")
            self.__dict__.update(values)

    install(monkeypatch, KvCacheConnectorConfig)
    assert make_kv_connector_config(novel="x").novel == "x"
    with pytest.raises(KvConnectorConfigError, match="did you mean 'connector_module'"):
        make_kv_connector_config(connector_modul="x")
    with pytest.raises(KvConnectorConfigError, match=r"unknown field\. Remedy: use one of"):
        make_kv_connector_config(quux="x")


def test_a_class_that_refuses_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class KvCacheConnectorConfig:
        def __init__(self, **values: Any) -> None:
            raise ValueError("connector_module must be importable")

    install(monkeypatch, KvCacheConnectorConfig)
    with pytest.raises(KvConnectorConfigError, match=r"must be importable.*Remedy"):
        make_kv_connector_config(connector="nonsense")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("connector_modul", "connector_module"),
        ("server_uri", "server_url"),
        ("scheduler_class", "connector_scheduler_class"),
        ("MC_BACKEND", None),
    ],
)
def test_an_unknown_override_names_the_nearest_field(name: str, nearest: str | None) -> None:
    with pytest.raises(KvConnectorConfigError) as caught:
        make_kv_connector_config(**{name: "x"})
    message = str(caught.value)
    assert name in message
    assert "Remedy" in message
    assert "MC_KV_CONFIG" in message
    if nearest is not None:
        assert f"'{nearest}'" in message


def test_an_ill_typed_override_is_refused() -> None:
    with pytest.raises(KvConnectorConfigError, match="server_url=7"):
        make_kv_connector_config(server_url=7)


# Settings given in code ---------------------------------------------------------------------------


def test_settings_given_in_code_come_first(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They are in the classes that the configuration names, before environment and file."""
    environment.setenv("MC_KEY_EPOCH", "3")
    environment.setenv("MC_MODEL_REVISION", "r1")
    config = make_kv_connector_config(MC_KEY_EPOCH=5, MC_DISABLE_FILE=tmp_path / "a.b")
    module = importlib.import_module(config.connector_module)
    settings = []
    for field, name in CLASSES.items():
        connector = getattr(module, getattr(config, field))(SimpleNamespace(model="m"))
        assert type(connector).__name__ == name
        settings.append(connector._instance.settings)
        connector.close()
    for one in settings:
        assert (one.key_epoch, one.model_revision) == (5, "r1")
        assert one.disable_file == str(tmp_path / "a.b")
        assert ("MC_KEY_EPOCH", "5", "override") in one.core.describe()
    plain = importlib.import_module(make_kv_connector_config().connector_module)
    assert plain.MooncakeKvCacheConnectorWorker.settings_in_code == {}


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_settings_given_in_code_reach_every_process(
    method: str, environment: pytest.MonkeyPatch
) -> None:
    """What travels is the configuration alone: names of a module and of two classes."""
    config = make_kv_connector_config(
        MC_BACKEND="memory", MC_MODEL_REVISION="a=1&b.c %2E", MC_KEY_EPOCH=7
    )
    code = """
import multiprocessing, pickle, sys
from support.spawned_settings import settings_of
if __name__ == "__main__":
    fields = tuple(sys.argv[2:])
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        print(pool.apply(settings_of, fields))
"""
    module, worker = config.connector_module, config.connector_worker_class
    done = run_python(code, method, module, worker, environment=clean_environment())
    assert done.stdout.strip() == "('memory', 'a=1&b.c %2E', 7)"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"MC_KEY_EPOCHS": 5}, ["MC_KEY_EPOCHS", "did you mean MC_KEY_EPOCH"]),
        ({"MC_KEY_EPOCH": "soon"}, ["MC_KEY_EPOCH", "soon"]),
        ({"MC_KEY_EPOCH": None}, ["MC_KEY_EPOCH", "None"]),
        ({"MC_RANK": 1}, ["MC_RANK", "environment"]),
        ({"MC_KV_CONFIG": "f"}, ["MC_KV_CONFIG", "environment"]),
        ({"MC_KEY_EPOCH": 5, "connector_module": "m"}, ["connector_module", "MC_KEY_EPOCH"]),
    ],
)
def test_settings_given_in_code_are_checked_at_once(
    overrides: dict[str, Any], words: list[str], environment: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KvConnectorConfigError) as caught:
        make_kv_connector_config(**overrides)
    assert [word for word in [*words, "Remedy"] if word not in str(caught.value)] == []


def test_a_name_that_holds_no_settings_is_no_module() -> None:
    importlib.import_module("mooncake_trtllm.configured")
    with pytest.raises(ImportError, match=r"configured\.nonsense"):
        importlib.import_module("mooncake_trtllm.configured.nonsense")


def test_a_foreign_mooncake_is_worked_around(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another package `mooncake`, first on the path, hides mooncake.tensorrt_llm."""
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake" / "__init__.py").write_text("")
    for name in [n for n in sys.modules if n.partition(".")[0] == "mooncake"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    with caplog.at_level(logging.WARNING, "mooncake_trtllm"):
        config = make_kv_connector_config()
    assert config.connector_module == "mooncake_trtllm"
    assert str(tmp_path / "mooncake") in caplog.text
    assert "Remedy" in caplog.text
    sys.modules.pop("mooncake", None)
