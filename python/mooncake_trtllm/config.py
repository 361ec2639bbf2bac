"""The entry point of users: the runtime's configuration object that selects this connector."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import inspect
import os
from typing import Any

from mooncake_trtllm._log import log
from mooncake_trtllm.errors import KvConnectorConfigError

__all__ = ["ShimConnectorConfig", "make_kv_connector_config"]

_PUBLIC_MODULE = "mooncake.tensorrt_llm"
_OWN_MODULE = "mooncake_trtllm"
_SCHEDULER_CLASS = "MooncakeKvCacheConnectorScheduler"
_WORKER_CLASS = "MooncakeKvCacheConnectorWorker"
_SETTING_PREFIXES = ("MC_", "MOONCAKE_")
_OF_ONE_PROCESS = ("MC_RANK", "MC_WORLD_SIZE", "MC_KV_CONFIG")


@dataclasses.dataclass
class ShimConnectorConfig:
    """Fields of the runtime's KvCacheConnectorConfig, for use without it. Strict, like that."""

    connector: str | None = None
    connector_module: str | None = None
    connector_scheduler_class: str | None = None
    connector_worker_class: str | None = None
    server_url: str | None = None

    def __post_init__(self) -> None:
        """Refuse values that the runtime would refuse."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and not isinstance(value, str):
                raise ValueError(f"{field.name}={value!r}: must be a string or None")


_SHIM_FIELDS = tuple(field.name for field in dataclasses.fields(ShimConnectorConfig))


def make_kv_connector_config(**overrides: Any) -> Any:
    """Return what `LLM(kv_connector_config=...)` takes to use this connector.

    It is the runtime's KvCacheConnectorConfig when TensorRT-LLM is installed, else a strict object
    with the same fields. `overrides` are fields of it, or settings of the connector such as
    MC_KEY_EPOCH=5, which go before environment and file on every rank.
    """
    config_class = _runtime_config_class() or ShimConnectorConfig
    known = _field_names(config_class)
    given = {n: v for n, v in overrides.items() if n.startswith(_SETTING_PREFIXES)}
    settings = _checked(given) if given else {}
    if settings and "connector_module" in overrides:
        raise KvConnectorConfigError(
            "make_kv_connector_config: settings travel in connector_module, so both cannot be "
            f"given. Remedy: leave out connector_module, or put {', '.join(settings)} into the "
            "environment or the file named by MC_KV_CONFIG"
        )
    fields = {name: value for name, value in overrides.items() if name not in given}
    for name in fields:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            offer = f"; did you mean '{near[0]}'?" if near else "."
            raise KvConnectorConfigError(
                f"make_kv_connector_config({name}=...): unknown field{offer} "
                f"Remedy: use one of {', '.join(known)}, or a setting such as MC_BACKEND, which "
                "may also stand in the environment or the file named by MC_KV_CONFIG"
            )
    fields = {
        "connector_module": _connector_module(settings),
        "connector_scheduler_class": _SCHEDULER_CLASS,
        "connector_worker_class": _WORKER_CLASS,
        **fields,
    }
    try:
        return config_class(**fields)
    except (TypeError, ValueError) as error:
        raise KvConnectorConfigError(
            f"make_kv_connector_config: {config_class.__name__} refuses {fields}: "
            f"{error}. Remedy: correct the field that the message names"
        ) from None


def _checked(given: dict[str, Any]) -> dict[str, str]:
    """Return settings as text. Raises KvConnectorConfigError for a name or value that is wrong."""
    from mooncake_trtllm.settings import parse_settings

    own = [name for name in given if name in _OF_ONE_PROCESS]
    if own:
        raise KvConnectorConfigError(
            f"make_kv_connector_config({own[0]}=...): it is of one process, and what is given here "
            f"reaches all. Remedy: set {own[0]} in the environment"
        )
    texts = {
        name: str(int(value)) if isinstance(value, bool) else str(value)
        for name, value in given.items()
    }
    try:
        parse_settings(os.environ, texts)
    except KvConnectorConfigError as error:
        raise KvConnectorConfigError(
            f"make_kv_connector_config({', '.join(given)}): {error}. Remedy: correct it here, or "
            "leave it to the environment and the file named by MC_KV_CONFIG"
        ) from None
    return texts


def _runtime_config_class() -> Any:
    # Imported here: naming the configuration must not load the runtime's base classes.
    from mooncake_trtllm.shim import find_runtime

    for name in ("tensorrt_llm.llmapi", "tensorrt_llm.llmapi.llm_args"):
        config_class = getattr(find_runtime(name), "KvCacheConnectorConfig", None)
        if inspect.isclass(config_class):
            return config_class
    if find_runtime("tensorrt_llm") is not None:
        log.warning(
            "this tensorrt_llm has no llmapi.KvCacheConnectorConfig (connectors came with version "
            "1.1): make_kv_connector_config() returns a stand-in, which its LLM() may refuse"
        )
    return None


def _field_names(config_class: Any) -> list[str]:
    fields = getattr(config_class, "model_fields", None)
    if isinstance(fields, dict) and fields:
        return list(fields)
    if dataclasses.is_dataclass(config_class):
        return [field.name for field in dataclasses.fields(config_class)]
    parameters = inspect.signature(config_class).parameters.values()
    named = [p.name for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD]
    return named or list(_SHIM_FIELDS)


def _connector_module(settings: dict[str, str]) -> str:
    """The public name, unless another package named `mooncake` hides it, or settings go along."""
    if settings:
        from mooncake_trtllm.configured import name_of

        return name_of(settings)
    try:
        found = importlib.util.find_spec(_PUBLIC_MODULE) is not None
        reason = "it is not found"
    except Exception as error:  # noqa: BLE001 - a foreign `mooncake` may fail in any way
        found, reason = False, f"{type(error).__name__}: {error}"
    if found:
        return _PUBLIC_MODULE
    parent = importlib.util.find_spec("mooncake")
    where = (parent.origin or list(parent.submodule_search_locations or [])) if parent else "none"
    log.warning(
        "connector_module is '%s', since '%s' cannot be imported (%s; package 'mooncake' comes "
        "from %s). Both names give the same classes. Remedy for the other name: install "
        "mooncake-trtllm and Mooncake's wheel into one environment, or remove the other package "
        "'mooncake'",
        _OWN_MODULE,
        _PUBLIC_MODULE,
        reason,
        where,
    )
    return _OWN_MODULE
