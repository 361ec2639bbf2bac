"""Small but real model folders, made from seeds.

`weights_seed` decides the tensors alone and `tokenizer_seed` the tokenizer alone, so that two
fine-tunes of one architecture, or two tokenizers, can be told apart by content and by nothing else.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mooncake_trtllm.simulator.geometry import Geometry

__all__ = ["ModelFolder"]

_SAFETENSORS_NAMES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}
_ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class ModelFolder:
    """Where a model lies and what it is, for the oracle."""

    path: Path
    dtype: str
    weights_seed: int
    tokenizer_seed: int

    @property
    def identity(self) -> Sequence[object]:
        """What makes this model's KV differ from another's of the same geometry."""
        return ("model", self.weights_seed, self.tokenizer_seed, self.dtype)

    @classmethod
    def create(
        cls,
        path: Path | str,
        geometry: Geometry,
        *,
        weights_seed: int = 1,
        tokenizer_seed: int = 1,
        dtype: str | None = None,
    ) -> ModelFolder:
        """Writes the folder. `dtype` is the weights'; default: the cache's, where it is a float."""
        model_dtype = dtype or (geometry.dtype if geometry.dtype in _ITEM_BYTES else "bfloat16")
        if model_dtype not in _ITEM_BYTES:
            raise ValueError(
                f"dtype={model_dtype!r}: no model has it; remedy: one of {', '.join(_ITEM_BYTES)}"
            )
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        _write_json(folder / "config.json", _configuration(geometry, model_dtype))
        _write_json(folder / "tokenizer.json", _tokenizer(tokenizer_seed))
        _write_json(
            folder / "tokenizer_config.json",
            {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1 << 20},
        )
        _write_weights(folder / "model.safetensors", geometry, model_dtype, weights_seed)
        return cls(folder, model_dtype, weights_seed, tokenizer_seed)


def _configuration(geometry: Geometry, dtype: str) -> dict[str, object]:
    hidden = geometry.kv_heads * geometry.head_dim
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": geometry.layers,
        "num_attention_heads": geometry.kv_heads,
        "num_key_value_heads": geometry.kv_heads,
        "head_dim": geometry.head_dim,
        "max_position_embeddings": 1 << 20,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "torch_dtype": dtype,
        "vocab_size": 1 << 17,
    }


def _tokenizer(seed: int) -> dict[str, object]:
    letters = [chr(ord("a") + (index + seed) % 26) for index in range(26)]
    return {
        "version": "1.0",
        "added_tokens": [],
        "model": {
            "type": "WordLevel",
            "vocab": {letter: index for index, letter in enumerate(letters)},
            "unk_token": letters[0],
        },
    }


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def _write_weights(path: Path, geometry: Geometry, dtype: str, seed: int) -> None:
    """A safetensors file: length of the header, header, tensors one behind the other."""
    hidden = geometry.kv_heads * geometry.head_dim
    shapes: dict[str, list[int]] = {"model.norm.weight": [hidden]}
    for layer in range(geometry.layers):
        for part in ("k_proj", "v_proj"):
            shapes[f"model.layers.{layer}.self_attn.{part}.weight"] = [hidden, hidden]
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        size = int(np.prod(shape)) * _ITEM_BYTES[dtype]
        header[name] = {
            "dtype": _SAFETENSORS_NAMES[dtype],
            "shape": shape,
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    # PCG64 seeded by number: the same bytes on every machine and version.
    data = np.random.Generator(np.random.PCG64(seed)).bytes(offset)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
