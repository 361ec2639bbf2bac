"""What runs set, and ask of settings, so that their result is the connector's alone."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mooncake_trtllm.cli import offers
from mooncake_trtllm.cli.exits import UsageError

if TYPE_CHECKING:
    # At run time where it is used: `selfcheck` tells whether this module loads at all.
    from mooncake_trtllm._native import Settings
    from mooncake_trtllm.simulator import Geometry

__all__ = ["check_stage_address", "check_staging", "load_all", "without_stage_port"]

_SYSTEM_PAGE = 4096
_HEADER_BYTES = 128
_MARKER_BYTES = 64 << 10
"""Marks of completeness, which share the staging memory, need less."""
_MIB = 1 << 20


def load_all(deadline_ms: int) -> dict[str, str]:
    """Whatever is stored is loaded: neither a slow machine nor a choice to compute costs hits."""
    return {
        "MC_STAGE_DEADLINE_MS": str(deadline_ms),
        "MC_LOAD_DEADLINE_MS": str(deadline_ms),
        "MC_PREFILL_TOK_PER_S": "0",
        "MC_MIN_HIT_BLOCKS": "1",
    }


def check_staging(
    verb: str, env: Mapping[str, str], geometry: Geometry, tp: int, prompt_tokens: int
) -> None:
    """Raises UsageError where a rank has no room for one prompt: its saves, or its promise."""
    settings = _settings(env)
    blocks = prompt_tokens // geometry.tokens_per_block
    page = geometry.page_bytes(tp)
    parts = geometry.layers if settings.flag("MC_LAYER_GRANULARITY") else 1
    stored = parts * _rounded_up(_HEADER_BYTES + page // parts, _SYSTEM_PAGE)
    # Saves get half of it unless told otherwise, and never more than three quarters.
    least = _rounded_up(2 * blocks * stored + _MARKER_BYTES, _MIB)
    for name, needed in (("MC_STAGING_BYTES", least), ("MC_SAVE_QUEUE_BYTES", blocks * page)):
        if settings.number(name) < needed:
            raise UsageError(
                f"{name}={settings.number(name)}: too small for {verb}, whose prompts have "
                f"{blocks} blocks of {page} bytes on each rank; remedy: {needed} or more, or unset "
                "it for this run"
            )


def check_stage_address(env: Mapping[str, str], tp: int) -> None:
    """Raises UsageError where the scheduler cannot listen for its ranks at MC_STAGE_ADDRESS."""
    text = _settings(env).text("MC_STAGE_ADDRESS")
    if not text or tp == 1 or not offers.is_staged(env):
        return
    host, port = _host_and_port(text)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen()
    except OSError as error:
        raise UsageError(
            f"MC_STAGE_ADDRESS={text}: cannot listen for ranks there "
            f"({error.strerror or error}); remedy: an address of this machine and a free port, or "
            "unset it for this run, whose ranks are all on this machine"
        ) from None


def without_stage_port(env: Mapping[str, str]) -> dict[str, str]:
    """MC_STAGE_ADDRESS for instances that run side by side, of which one alone gets a port."""
    text = _settings(env).text("MC_STAGE_ADDRESS")
    host, port = _host_and_port(text)
    return {"MC_STAGE_ADDRESS": host} if port else {}


def _settings(env: Mapping[str, str]) -> Settings:
    from mooncake_trtllm.settings import parse_settings

    return parse_settings({**os.environ, **env}, {})


def _host_and_port(address: str) -> tuple[str, int]:
    """Of a numeric address that the settings took; 0: none is named."""
    host, _, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if host and (bracketed or ":" not in host):
        with contextlib.suppress(ValueError):
            return host.strip("[]"), int(port)
    return address.strip("[]"), 0


def _rounded_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
