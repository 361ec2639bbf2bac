"""What the connector reads of the runtime's arguments (contract section 2), and nothing more."""

from __future__ import annotations

import json
import operator
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mooncake_trtllm._dtypes import stated_dtype
from mooncake_trtllm.errors import KvConnectorConfigError
from mooncake_trtllm.request import is_text

__all__ = [
    "EngineArgs",
    "attribute",
    "model_folder",
    "read_engine_args",
    "whole_number",
    "wrong_value",
]

_DEFAULT_TOKENS_PER_BLOCK = 32
_DEFAULT_ATTENTION_BACKEND = "TRTLLM"
# Far above anything that makes sense, and small enough for every field of the core.
_LARGEST_SIZE = (1 << 31) - 1
_LARGEST = (1 << 63) - 1
_NESTED_CONFIGS = ("text_config", "llm_config", "language_config")


def attribute(source: Any, name: str, default: Any = None) -> Any:
    """Return an attribute, or an item of a mapping; `default` where it is missing or None."""
    if isinstance(source, Mapping):
        value = source.get(name)
    else:
        value = getattr(source, name, None)
    return default if value is None else value


@dataclass(frozen=True)
class EngineArgs:
    """The part of the runtime's arguments that decides the KV cache, with defaults filled in."""

    model: str
    folder: Path | None
    compute_dtype: str | None
    kv_dtype: str | None  # None: only the pool tells
    kv_dtype_source: str
    weight_quantization: str
    kv_quantization: str
    attention_backend: str
    tokens_per_block: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    context_parallel_size: int
    expert_parallel_size: int
    max_seq_len: int | None
    compiles_model: bool = False
    model_config: Mapping[str, Any] = field(default_factory=dict)

    def config_value(self, name: str) -> Any:
        """Return a value of the model's config.json, also from the text part of a larger model."""
        value = self.model_config.get(name)
        for nested in _NESTED_CONFIGS:
            part = self.model_config.get(nested)
            if value is None and isinstance(part, Mapping):
                value = part.get(name)
        return value

    def config_integer(self, name: str) -> int | None:
        """Return a positive integer of config.json, None where it states none."""
        value = self.config_value(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        return None


def read_engine_args(llm_args: Any) -> EngineArgs:
    """Read the arguments. Raises KvConnectorConfigError for values that make no sense."""
    cache = attribute(llm_args, "kv_cache_config")
    quant = attribute(llm_args, "quant_config")
    model = attribute(llm_args, "model", "")
    folder = model_folder(model)
    model_config = _json_file(folder, "config.json")
    args = EngineArgs(
        model=str(model),
        folder=folder,
        compute_dtype=_dtype("dtype", attribute(llm_args, "dtype")),
        kv_dtype=None,
        kv_dtype_source="",
        weight_quantization=_algorithm(attribute(quant, "quant_algo")),
        kv_quantization=_algorithm(attribute(quant, "kv_cache_quant_algo"))
        or _checkpoint_kv_algorithm(folder),
        attention_backend=_text(
            "attn_backend", attribute(llm_args, "attn_backend", _DEFAULT_ATTENTION_BACKEND)
        ).upper(),
        tokens_per_block=_size(
            cache, "tokens_per_block", _DEFAULT_TOKENS_PER_BLOCK, "kv_cache_config."
        ),
        tensor_parallel_size=_size(llm_args, "tensor_parallel_size", 1),
        pipeline_parallel_size=_size(llm_args, "pipeline_parallel_size", 1),
        context_parallel_size=_size(llm_args, "context_parallel_size", 1),
        expert_parallel_size=_optional_size(llm_args, "moe_expert_parallel_size") or 1,
        max_seq_len=_optional_size(llm_args, "max_seq_len"),
        compiles_model=attribute(llm_args, "torch_compile_config") is not None,
        model_config=model_config,
    )
    return _with_kv_dtype(args, _dtype("kv_cache_config.dtype", attribute(cache, "dtype")))


def _with_kv_dtype(args: EngineArgs, stated: str | None) -> EngineArgs:
    """Resolve the type of KV as the runtime does: stated, else quantised, else the model's."""
    in_config = stated_dtype(args.config_value("torch_dtype")) or stated_dtype(
        args.config_value("dtype")
    )
    compute = args.compute_dtype or in_config
    candidates = (
        (stated, "kv_cache_config.dtype"),
        (stated_dtype(args.kv_quantization or None), "kv_cache_quant_algo"),
        (args.compute_dtype, "dtype"),
        (in_config, "the model's config.json"),
    )
    for name, source in candidates:
        if name is not None:
            return replace(args, kv_dtype=name, kv_dtype_source=source, compute_dtype=compute)
    return replace(args, compute_dtype=compute)


def model_folder(model: Any) -> Path | None:
    """Return a model's folder: a local one, or the only snapshot of a hub name in the cache."""
    text = os.fspath(model) if isinstance(model, os.PathLike) else str(model)
    if not text:
        return None
    try:
        path = Path(text).expanduser()
        if path.is_dir():
            return path
    except (OSError, RuntimeError):  # too long for a path, or no such user
        return None
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", text):
        return None
    snapshots = _hub_cache() / ("models--" + text.replace("/", "--")) / "snapshots"
    found = [path for path in snapshots.glob("*") if path.is_dir()]
    # Of several revisions any may be the one that the runtime has loaded: none is taken then.
    return found[0] if len(found) == 1 else None


def _hub_cache() -> Path:
    for name, part in (("HF_HUB_CACHE", "."), ("HUGGINGFACE_HUB_CACHE", "."), ("HF_HOME", "hub")):
        if os.environ.get(name):
            return Path(os.environ[name]).expanduser() / part
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface" / "hub"


def _json_file(folder: Path | None, name: str) -> Mapping[str, Any]:
    if folder is None:
        return {}
    try:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise KvConnectorConfigError(
            f"{folder / name} cannot be read: {reason}. Remedy: repair the model's folder"
        ) from None
    return content if isinstance(content, dict) else {}


def _checkpoint_kv_algorithm(folder: Path | None) -> str:
    """Return what a quantised checkpoint says of its KV; a runtime may read it later than us."""
    quantization = _json_file(folder, "hf_quant_config.json").get("quantization")
    if not isinstance(quantization, Mapping):
        return ""
    return _algorithm(quantization.get("kv_cache_quant_algo"))


def _algorithm(value: Any) -> str:
    text = _text("the quantisation", getattr(value, "value", value) or "").upper()
    return "" if text in ("NONE", "NO_QUANT") else text


def whole_number(source: Any, name: str, prefix: str = "") -> int | None:
    """Return a number of the runtime's arguments, None where it states none.

    Raises KvConnectorConfigError naming a value that is no whole number.
    """
    value = attribute(source, name)
    if value is None:
        return None
    try:
        number = int(value) if isinstance(value, str) else operator.index(value)
        if isinstance(value, bool) or abs(number) > _LARGEST:
            raise ValueError(value)
    except (TypeError, ValueError):
        raise wrong_value(f"{prefix}{name}", value, "must be a whole number") from None
    return number


def wrong_value(name: str, value: Any, reason: str) -> KvConnectorConfigError:
    """Return the error for an argument that cannot be what it is."""
    return KvConnectorConfigError(
        f"{name}={value!r}: {reason}. Remedy: correct it in the runtime's arguments"
    )


def _dtype(name: str, value: Any) -> str | None:
    dtype = stated_dtype(value)
    return None if dtype is None else _text(name, dtype)


def _text(name: str, value: Any) -> str:
    text = str(value)
    if not is_text(text):
        raise wrong_value(name, text, "must be text in UTF-8, since it enters the names of blocks")
    return text


def _size(source: Any, name: str, default: int, prefix: str = "") -> int:
    number = whole_number(source, name, prefix)
    if number is None:
        return default
    if not 1 <= number <= _LARGEST_SIZE:
        reason = f"must be a positive integer of at most {_LARGEST_SIZE}"
        raise wrong_value(f"{prefix}{name}", attribute(source, name), reason)
    return number


def _optional_size(source: Any, name: str) -> int | None:
    """Zero and less leave it to the runtime."""
    number = whole_number(source, name)
    if number is None or number <= 0:
        return None
    return _size(source, name, 1)
