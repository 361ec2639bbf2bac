"""Settings of the connector: read from environment and files here, understood by the core."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mooncake_trtllm import _native
from mooncake_trtllm._log import log
from mooncake_trtllm._set_by import described
from mooncake_trtllm.errors import KvConnectorConfigError
from mooncake_trtllm.request import is_text, lora_ids_from

__all__ = ["ConnectorSettings", "default_file_path", "load_settings", "origin", "parse_settings"]

_OUR_PREFIXES = ("MC_", "MOONCAKE_")


@dataclass(frozen=True)
class ConnectorSettings:
    """The values in force, those that are files already read."""

    core: _native.Settings
    backend: str
    model_revision: str | None
    key_epoch: int
    key_secret: bytes
    lora_ids: Mapping[int, str]
    by_layer: bool
    staged: bool
    stage_address: str
    staging_bytes: int
    save_queue_bytes: int
    lookup_deadline_s: float
    prefill_tok_per_s: int
    min_hit_blocks: int
    load_deadline_s: float
    replication_max: int
    replication_heat: int
    replication_half_life_s: float
    replication_bytes_per_s: int
    memory_bytes: int
    file_path: str
    file_max_bytes: int
    disable_file: str | None
    metrics_address: tuple[str, int]
    rank: int | None
    world_size: int | None

    def disabled(self) -> bool:
        """Whether the operator has switched the connector off for now."""
        return self.disable_file is not None and os.path.exists(self.disable_file)


def load_settings(overrides: Mapping[str, str] | None = None) -> ConnectorSettings:
    """Read all settings. Raises KvConnectorConfigError naming value, source and remedy.

    Logs the effective configuration once per process (again only if it changed).
    """
    core = parse_settings(os.environ, overrides or {})
    _tell_once(core)
    return ConnectorSettings(
        core=core,
        backend=core.text("MC_BACKEND"),
        model_revision=core.text("MC_MODEL_REVISION") or None,
        key_epoch=core.number("MC_KEY_EPOCH"),
        key_secret=_secret(core.text("MC_KEY_SECRET_FILE")),
        lora_ids=_lora_ids(core.text("MC_LORA_IDS")),
        by_layer=core.flag("MC_LAYER_GRANULARITY"),
        staged=core.text("MC_PROMISE") == "staged" and not core.flag("MC_LAYER_GRANULARITY"),
        stage_address=core.text("MC_STAGE_ADDRESS"),
        staging_bytes=core.number("MC_STAGING_BYTES"),
        save_queue_bytes=core.number("MC_SAVE_QUEUE_BYTES"),
        lookup_deadline_s=core.seconds("MC_STAGE_DEADLINE_MS"),
        prefill_tok_per_s=core.number("MC_PREFILL_TOK_PER_S"),
        min_hit_blocks=core.number("MC_MIN_HIT_BLOCKS"),
        load_deadline_s=core.seconds("MC_LOAD_DEADLINE_MS"),
        replication_max=core.number("MC_REPLICATION_MAX"),
        replication_heat=core.number("MC_REPLICATION_HEAT"),
        replication_half_life_s=core.seconds("MC_REPLICATION_HALF_LIFE_MS"),
        replication_bytes_per_s=core.number("MC_REPLICATION_BYTES_PER_S"),
        memory_bytes=core.number("MC_MEMORY_BYTES"),
        file_path=core.text("MC_FILE_PATH") or default_file_path(),
        file_max_bytes=core.number("MC_FILE_MAX_BYTES"),
        disable_file=core.text("MC_DISABLE_FILE") or None,
        metrics_address=(core.text("MC_METRICS_HOST"), core.number("MC_METRICS_PORT")),
        rank=core.number("MC_RANK") if core.has_value("MC_RANK") else None,
        world_size=core.number("MC_WORLD_SIZE") if core.has_value("MC_WORLD_SIZE") else None,
    )


def _texts(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what is text. The variables of other programs may hold any bytes."""
    texts = {}
    for name, value in environment.items():
        if is_text(name) and is_text(value):
            texts[name] = value
        elif is_text(name) and name.startswith(_OUR_PREFIXES):
            raise KvConnectorConfigError(
                f"{name}={value!r} has bytes that are not UTF-8. Remedy: correct or unset {name}"
            )
    return texts


def default_file_path() -> str:
    """The folder of the file back end where MC_FILE_PATH is not set: the same for all of a user.

    Not below XDG_RUNTIME_DIR or TMPDIR, which differ between a login and a service of the same
    user, and end with the login.
    """
    shared = "/dev/shm"
    base = shared if os.access(shared, os.W_OK | os.X_OK) else "/tmp"
    return f"{base}/mooncake-kv-{os.geteuid()}"


def parse_settings(
    environment: Mapping[str, str], overrides: Mapping[str, str]
) -> _native.Settings:
    """Read the files that are named and parse all sources. Raises KvConnectorConfigError."""
    environment = _texts(environment)
    file_name = environment.get("MC_KV_CONFIG", "")
    file_text = _read("MC_KV_CONFIG", file_name) if file_name else None
    # The store's own file may be named in ours, so its name is looked up before anything is
    # concluded from the settings.
    first = _native.Settings.parse(
        environment,
        overrides={**overrides, "MC_BACKEND": "memory"},
        file_text=file_text,
        file_name=file_name,
    )
    store_file = first.text("MOONCAKE_CONFIG_PATH")
    store_text = _read("MOONCAKE_CONFIG_PATH", store_file) if store_file else None
    return _native.Settings.parse(
        environment,
        overrides=dict(overrides),
        file_text=file_text,
        file_name=file_name,
        store_file_text=store_text,
        store_file_name=store_file,
    )


def origin(core: _native.Settings) -> str:
    """Where MOONCAKE_MASTER stands, in brackets, if that is not the variable of that name."""
    source = next((s for name, _, s in core.describe() if name == "MOONCAKE_MASTER"), "default")
    if source == "store file":
        return f" (from {core.text('MOONCAKE_CONFIG_PATH')}, master_server_address)"
    return f" (from {core.text('MC_KV_CONFIG')})" if source == "file" else ""


def _tell_once(core: _native.Settings) -> None:
    for text in core.warnings():
        log.warning_once("%s", text)
    log.essential_once(
        "settings in force: %s",
        ", ".join(f"{name}={value} ({source})" for name, value, source in described(core)),
    )


def _read(setting: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _unreadable(setting, path, error) from None


def _secret(path: str) -> bytes:
    if not path:
        return b""
    try:
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise _unreadable("MC_KEY_SECRET_FILE", path, error) from None
    if not secret:
        raise _unreadable("MC_KEY_SECRET_FILE", path, ValueError("it is empty"))
    return secret


def _lora_ids(path: str) -> Mapping[int, str]:
    if not path:
        return {}
    try:
        # Pairs, since a name that stands there twice says two things.
        entries = json.loads(_read("MC_LORA_IDS", path), object_pairs_hook=tuple)
        if not isinstance(entries, tuple):
            raise ValueError("it is no JSON object of adapter numbers and identities")
        return lora_ids_from(entries)
    except (ValueError, RecursionError) as error:
        raise _unreadable("MC_LORA_IDS", path, error) from None


def _reason(error: Exception) -> str:
    """Without the path, which stands before it."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _unreadable(setting: str, path: str, error: Exception) -> KvConnectorConfigError:
    remedy = f"correct the file, or {setting}"
    if isinstance(error, FileNotFoundError):
        remedy = f"create the file, or unset {setting}"
    return KvConnectorConfigError(f"{setting}={path}: {_reason(error)}. Remedy: {remedy}")
