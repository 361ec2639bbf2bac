"""Configurations of the runtime that the connector refuses, puts right, or warns about.

A refusal names the value, the reason and the remedy. What the runtime does by default is never
refused.
"""

from __future__ import annotations

from typing import Any

from mooncake_trtllm._args import EngineArgs, attribute, whole_number, wrong_value
from mooncake_trtllm._log import log
from mooncake_trtllm.errors import KvConnectorConfigError

__all__ = ["check_engine"]

_HYBRID_LAYERS = ("linear_attention", "mamba", "mamba2", "recurrent", "ssm", "conv")


def check_engine(llm_args: Any, args: EngineArgs) -> None:
    """Raise KvConnectorConfigError for a configuration whose KV the connector cannot exchange."""
    cache = attribute(llm_args, "kv_cache_config")
    _check_parallelism(llm_args, args)
    _check_decoding(llm_args)
    _check_cache(cache)
    _check_layers(cache, args)
    _settle_partial_reuse(cache)


def _check_parallelism(llm_args: Any, args: EngineArgs) -> None:
    if args.pipeline_parallel_size > 1:
        raise _refused(
            "pipeline_parallel_size",
            args.pipeline_parallel_size,
            "each stage holds other layers, and a block is one page of all layers",
            "use pipeline_parallel_size=1 (and tensor_parallel_size instead)",
        )
    if args.context_parallel_size > 1:
        raise _refused(
            "context_parallel_size",
            args.context_parallel_size,
            "the tokens of a block are spread over ranks",
            "use context_parallel_size=1",
        )
    if attribute(llm_args, "enable_attention_dp", False):
        raise _refused(
            "enable_attention_dp",
            True,
            "every rank then has requests of its own, and this version has one scheduler",
            "set enable_attention_dp to false",
        )


def _check_decoding(llm_args: Any) -> None:
    beams = whole_number(llm_args, "max_beam_width")
    if beams is not None and beams > 1:
        raise _refused(
            "max_beam_width",
            beams,
            "the beams of a request share and copy pages behind the connector's back",
            "use max_beam_width=1",
        )
    if attribute(llm_args, "speculative_config") is not None:
        raise _refused(
            "speculative_config",
            type(attribute(llm_args, "speculative_config")).__name__,
            "pages of rejected draft tokens are taken back without telling the connector",
            "leave out speculative_config",
        )
    if attribute(llm_args, "sparse_attention_config") is not None:
        raise _refused(
            "sparse_attention_config",
            "set",
            "its index cache lies in a second pool that the runtime does not register",
            "leave out sparse_attention_config",
        )


def _check_cache(cache: Any) -> None:
    if not attribute(cache, "enable_block_reuse", True):
        raise _refused(
            "kv_cache_config.enable_block_reuse",
            attribute(cache, "enable_block_reuse"),
            "the runtime then never asks a connector for blocks",
            "set kv_cache_config.enable_block_reuse to true",
        )
    for tier in ("host_cache_size", "disk_cache_size"):
        size = whole_number(cache, tier, "kv_cache_config.")
        if size is not None and size > 0:
            raise _refused(
                f"kv_cache_config.{tier}",
                size,
                "with a second pool a block's number no longer says where its page is",
                f"set kv_cache_config.{tier} to 0",
            )
    if attribute(cache, "use_kv_cache_manager_v2", False) is True:
        raise _refused(
            "kv_cache_config.use_kv_cache_manager_v2",
            True,
            "this version supports the V1 KV cache manager",
            "set kv_cache_config.use_kv_cache_manager_v2 to false",
        )


def _check_layers(cache: Any, args: EngineArgs) -> None:
    for name in (args.kv_dtype, args.kv_quantization.lower()):
        if name == "nvfp4":
            raise _refused(
                "KV cache type",
                "NVFP4",
                "its block scales lie in a second pool that the runtime does not register",
                "use kv_cache_config.dtype 'fp8' or 'auto', or a checkpoint with another KV type",
            )
    windows = _windows(attribute(cache, "max_attention_window", ()))
    if windows:
        _check_windows(windows, args)
    kinds = args.config_value("layer_types")
    recurrent = [k for k in kinds if k in _HYBRID_LAYERS] if isinstance(kinds, list) else []
    if recurrent or args.config_value("hybrid_override_pattern"):
        raise _refused(
            "the model's layers",
            recurrent[0] if recurrent else "hybrid_override_pattern",
            "the state of recurrent layers is not in the pool that the runtime registers",
            "use the connector with models whose layers are all attention",
        )


def _windows(stated: Any) -> list[int]:
    windows = [stated] if isinstance(stated, int) else stated
    if not isinstance(windows, (list, tuple)) or not all(
        w is None or (isinstance(w, int) and not isinstance(w, bool)) for w in windows
    ):
        raise wrong_value(
            "kv_cache_config.max_attention_window", stated, "must be a list of whole numbers"
        )
    return [w for w in windows if w]


def _check_windows(windows: list[int], args: EngineArgs) -> None:
    longest = args.max_seq_len or args.config_integer("max_position_embeddings")
    if longest is not None and min(windows) >= longest:
        return
    if len(set(windows)) > 1:
        reason = "layers with other windows have pools of their own, and only one is registered"
    else:
        reason = "pages that leave the window are reused while the request still runs"
    raise _refused(
        "kv_cache_config.max_attention_window",
        windows,
        reason,
        "leave out max_attention_window, or set it and max_seq_len so that no window is shorter "
        f"than max_seq_len ({longest if longest is not None else 'not stated'})",
    )


def _settle_partial_reuse(cache: Any) -> None:
    """Turn off partial reuse, a default of the runtime that costs most hits.

    With it the local match often ends inside a block, and there nothing can be promised.
    """
    if attribute(cache, "enable_partial_reuse", False) is not True:
        return
    try:
        cache.enable_partial_reuse = False
    except Exception as error:  # noqa: BLE001 - a frozen or validating object may raise anything
        log.debug("enable_partial_reuse cannot be set: %s", error)
    if attribute(cache, "enable_partial_reuse", False) is False:
        log.warning_once(
            "kv_cache_config.enable_partial_reuse was true, the runtime's default, and is now "
            "false: a local match inside a block leaves nothing that the connector could load. "
            "Set it to false yourself to silence this"
        )
    else:
        log.warning_once(
            "kv_cache_config.enable_partial_reuse is true: whenever the local match ends inside a "
            "block, nothing is loaded for that request. Remedy: set it to false"
        )


def _refused(name: str, value: Any, reason: str, remedy: str) -> KvConnectorConfigError:
    return KvConnectorConfigError(
        f"{name}={value} is not supported with this connector: {reason}. Remedy: {remedy}"
    )
