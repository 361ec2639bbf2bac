"""The templates in configs/ are what the programs that read them take."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from mooncake_trtllm.config import make_kv_connector_config
from mooncake_trtllm.settings import load_settings

CONFIGS = Path(__file__).parents[3] / "benchmarks" / "tensorrt_llm_kv_connector" / "configs"


def template(role: str) -> dict[str, Any]:
    content = yaml.safe_load((CONFIGS / f"{role}.yaml").read_text())
    assert isinstance(content, dict)
    return content


@pytest.mark.parametrize("role", ["ctx", "gen"])
def test_server_templates_name_the_connector(role: str, environment: pytest.MonkeyPatch) -> None:
    connector = template(role)["kv_connector_config"]
    wanted = make_kv_connector_config()
    assert connector == {
        "connector_module": "mooncake.tensorrt_llm",
        "connector_scheduler_class": wanted.connector_scheduler_class,
        "connector_worker_class": wanted.connector_worker_class,
    }
    module = importlib.import_module(connector.pop("connector_module"))
    assert all(isinstance(getattr(module, name), type) for name in connector.values())


def test_ctx_and_gen_can_share_blocks() -> None:
    assert template("ctx")["kv_cache_config"] == template("gen")["kv_cache_config"]


def test_the_store_template_is_taken_and_every_field_of_it_counts(
    environment: pytest.MonkeyPatch,
) -> None:
    environment.delenv("MC_BACKEND")
    path = CONFIGS / "store.json"
    environment.setenv("MOONCAKE_CONFIG_PATH", str(path))
    settings = load_settings()
    assert settings.backend == "mooncake"
    fields = json.loads(path.read_text())
    read = {
        name: value
        for name, value, source in settings.core.describe()
        if source not in ("default", "environment")
    }
    assert read["MOONCAKE_MASTER"] == fields["master_server_address"]
    assert read["MOONCAKE_LOCAL_HOSTNAME"] == fields["local_hostname"]
    assert read["MOONCAKE_TE_META_DATA_SERVER"] == fields["metadata_server"]
    # An empty field is a setting that stays unset.
    assert len(read) == sum(value != "" for value in fields.values())
