"""One spelling for each data type, whoever names it: torch, numpy, a config file or a setting."""

from __future__ import annotations

from typing import Any

__all__ = ["dtype_bytes", "dtype_name", "is_opaque", "stated_dtype"]

_ALIASES = {
    "half": "float16",
    "fp16": "float16",
    "f2": "float16",
    "bf16": "bfloat16",
    "float": "float32",
    "fp32": "float32",
    "f4": "float32",
    "fp8": "fp8_e4m3",
    "e4m3": "fp8_e4m3",
    "float8_e4m3": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "fp8_e4m3fn": "fp8_e4m3",
    "e5m2": "fp8_e5m2",
    "float8_e5m2": "fp8_e5m2",
    "fp4": "nvfp4",
    "i1": "int8",
    "u1": "uint8",
    "u2": "uint16",
    "i2": "int16",
}
_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "int8": 1,
}
_OPAQUE = frozenset({"uint8", "int8", "uint16", "int16", "uint32", "int32"})


def dtype_name(dtype: Any) -> str:
    """Return the canonical name: "torch.bfloat16", np.dtype("float16") and "fp8" are all known."""
    value = getattr(dtype, "value", dtype)  # members of an enumeration
    if not isinstance(value, str):
        name = getattr(value, "name", None) or getattr(value, "__name__", None) or str(value)
        value = str(name)
    text = value.strip().rpartition(".")[2].lower().lstrip("<>|=")
    return _ALIASES.get(text, text)


def stated_dtype(dtype: Any) -> str | None:
    """Return the canonical name, or None where the runtime chooses ("auto", absent)."""
    if dtype is None:
        return None
    name = dtype_name(dtype)
    return None if name in ("", "auto", "none") else name


def is_opaque(name: str) -> bool:
    """Whether a pool of this type may hold any other type as plain bytes.

    Runtimes allocate some types that way, and numpy has neither bfloat16 nor fp8.
    """
    return name in _OPAQUE or name.startswith("void")


def dtype_bytes(name: str) -> int | None:
    """Return bytes of one element, None if unknown."""
    return _BYTES.get(name)
