"""Which KV the instance may exchange with others: its keyspace, in two halves.

Configuration and model are known when an instance is made, the geometry of the pool once it is
registered. Both together make the fingerprint that prefixes every key.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from mooncake_trtllm import _native
from mooncake_trtllm._args import EngineArgs
from mooncake_trtllm._dtypes import dtype_bytes, is_opaque
from mooncake_trtllm._log import log
from mooncake_trtllm._pool import HostPool
from mooncake_trtllm.errors import KvConnectorConfigError
from mooncake_trtllm.request import is_text

__all__ = ["EngineIdentity", "check_geometry", "engine_identity", "states_block_size"]

# How this connector takes bytes from a pool; raise it if that ever changes.
_LAYOUT = "dense-pool/1"
_BY_LAYER = ";by layer/1"
_REPLICATED = ";one shard/1"
# What the core calls a model that was read in part.
_SAMPLED = "sampled digest"


@dataclass(frozen=True)
class EngineIdentity:
    """The half of a keyspace that needs no pool. Equal for all ranks of an instance."""

    key_epoch: int
    model_content: str
    tokenizer: str
    engine_layout: str
    kv_dtype: str | None
    kv_dtype_source: str
    quantization: str
    attention_backend: str
    tokens_per_block: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    context_parallel_size: int
    expert_parallel_size: int

    def keyspace(
        self,
        geometry: _native.PoolGeometry,
        kv_dtype: str,
        *,
        by_layer: bool = False,
        replicated: bool = False,
    ) -> bytes:
        """Return the fingerprint of the keyspace for a pool of this geometry and type.

        Instances that store blocks whole and those that store them by layer share nothing, nor do
        those that store a block once for all ranks and those that store it for each.
        """
        identity = _native.KeyspaceIdentity()
        identity.key_epoch = self.key_epoch
        identity.model_content = self.model_content
        identity.tokenizer = self.tokenizer
        identity.engine_layout = "".join(
            (self.engine_layout, _BY_LAYER * by_layer, _REPLICATED * replicated)
        )
        identity.kv_dtype = kv_dtype
        identity.kv_quantization = self.quantization
        identity.attention_backend = self.attention_backend
        identity.tokens_per_block = self.tokens_per_block
        identity.layers = list(range(geometry.layers))
        identity.bytes_per_page = geometry.bytes_per_page
        identity.kv_factor = geometry.kv_factor
        identity.element_bytes = geometry.element_bytes
        identity.tensor_parallel_size = self.tensor_parallel_size
        identity.pipeline_parallel_size = self.pipeline_parallel_size
        identity.context_parallel_size = self.context_parallel_size
        identity.expert_parallel_size = self.expert_parallel_size
        return identity.fingerprint()


def engine_identity(
    args: EngineArgs, *, model_revision: str | None, key_epoch: int
) -> EngineIdentity:
    """Establish the model's content and collect what else decides KV. Reads the model's files.

    Raises KvConnectorConfigError if nothing identifies the model.
    """
    folder = None if args.folder is None else str(args.folder)
    if folder is not None and not is_text(folder):
        raise KvConnectorConfigError(
            f"model={args.model!r}: the path of its folder is not UTF-8. Remedy: rename the "
            "folder, or link to it under another name"
        )
    try:
        model = _native.identify_model(folder, model_revision)
    except KvConnectorConfigError as error:
        raise KvConnectorConfigError(
            f"model={args.model!r}: {error}. Remedy: pass the model's folder (a hub name will do "
            "if the hub's cache holds one revision of it), or set MC_MODEL_REVISION to a text that "
            "changes whenever the weights do"
        ) from None
    log.info("model %r is known as %s (%s)", args.model, model.content, model.evidence)
    if model.evidence == _SAMPLED:
        log.warning(
            "the weights of model %r are too large to be read in full: fixed places of every "
            "tensor stand for them. To name them beyond doubt, set MC_MODEL_REVISION to a text "
            "that changes whenever the weights do",
            args.model,
        )
    compute = args.compute_dtype or "unstated"
    return EngineIdentity(
        key_epoch=key_epoch,
        model_content=model.content,
        tokenizer=model.tokenizer,
        engine_layout=f"{_LAYOUT};{_runtime_version()}",
        kv_dtype=args.kv_dtype,
        kv_dtype_source=args.kv_dtype_source,
        quantization=(
            f"compute={compute};weights={args.weight_quantization};kv={args.kv_quantization}"
        ),
        attention_backend=args.attention_backend,
        tokens_per_block=args.tokens_per_block,
        tensor_parallel_size=args.tensor_parallel_size,
        pipeline_parallel_size=args.pipeline_parallel_size,
        context_parallel_size=args.context_parallel_size,
        expert_parallel_size=args.expert_parallel_size,
    )


def _runtime_version() -> str:
    """Return major and minor version of the runtime that owns the pool, which decide its layout."""
    version = str(getattr(sys.modules.get("tensorrt_llm"), "__version__", "none"))
    match = re.match(r"\d+\.\d+", version)
    return f"runtime {match.group() if match else version}"


def settle_kv_dtype(identity: EngineIdentity, pool: HostPool) -> str:
    """Return the type of the pool's elements. Raises KvConnectorConfigError if sources disagree.

    A pool may hold any type as plain bytes; what the configuration says counts then. A type that
    was only derived gives way to the pool's.
    """
    stated, source = identity.kv_dtype, identity.kv_dtype_source
    if stated is None or pool.dtype == stated:
        return pool.dtype
    if is_opaque(pool.dtype):
        return stated
    if source == "kv_cache_config.dtype":
        raise KvConnectorConfigError(
            f"the registered KV pool has elements of type {pool.dtype}, but {source} says "
            f"{stated}: blocks would be exchanged under the wrong name. Remedy: set {source} to "
            f"'auto' or to the type of the pool ({pool.dtype})"
        )
    log.info("the KV pool has type %s, not %s as %s says", pool.dtype, stated, source)
    return pool.dtype


def check_geometry(args: EngineArgs, pool: HostPool, kv_dtype: str) -> None:
    """Compare the pool with what the model's config.json states, if it does.

    Raises KvConnectorConfigError naming both values.
    """
    _, layers, kv_factor, elements = pool.shape
    stated_layers = args.config_integer("num_hidden_layers")
    if stated_layers is not None and stated_layers != layers:
        raise KvConnectorConfigError(
            f"the registered KV pool {list(pool.shape)} has {layers} layers, but config.json says "
            f"num_hidden_layers={stated_layers}: the runtime keeps the KV of the other layers in a "
            "pool that it does not register. Remedy: use the connector with models whose layers "
            "all have the same KV heads, or correct the model's folder"
        )
    per_token = _elements_per_token(args, kv_factor)
    if per_token is None:
        return
    expected = per_token * args.tokens_per_block
    if elements == expected or _same_bytes(pool, elements, expected, kv_dtype):
        return
    tokens, rest = divmod(elements, per_token)
    cause = (
        f"the pool has {tokens} tokens a block; an attention backend may override tokens_per_block"
        if rest == 0
        else "the pool belongs to another model or another tensor_parallel_size"
    )
    raise KvConnectorConfigError(
        f"the registered KV pool {list(pool.shape)} has {elements} elements per block and layer, "
        f"but config.json, tensor_parallel_size={args.tensor_parallel_size} and tokens_per_block="
        f"{args.tokens_per_block} make {expected}. Likely cause: {cause}. Remedy: set "
        "kv_cache_config.tokens_per_block to the value in effect, or correct the model's folder"
    )


def is_replicated(args: EngineArgs, geometry: _native.PoolGeometry) -> bool:
    """Whether every rank's pages are proven to hold the same bytes: latents, which have no heads.

    Alike for all instances of a model whose folder is there; the keyspace tells the others apart.
    """
    latent = args.config_integer("kv_lora_rank") is not None and geometry.kv_factor == 1
    return latent and args.tensor_parallel_size > 1


def states_block_size(args: EngineArgs) -> bool:
    """Whether check_geometry() proves that a page holds `tokens_per_block` tokens."""
    return _elements_per_token(args, 2) is not None or _elements_per_token(args, 1) is not None


def _elements_per_token(args: EngineArgs, kv_factor: int) -> int | None:
    """Return elements of one token, layer and K or V on one rank, None if not stated."""
    latent = args.config_integer("kv_lora_rank")
    if latent is not None:
        rope = args.config_integer("qk_rope_head_dim")
        return None if rope is None or kv_factor != 1 else latent + rope
    query_heads = args.config_integer("num_attention_heads")
    heads = args.config_integer("num_key_value_heads")
    if heads is None and args.config_value("num_key_value_heads") is None:
        heads = query_heads
    head_size = args.config_integer("head_dim")
    hidden = args.config_integer("hidden_size")
    if head_size is None and hidden is not None and query_heads is not None:
        head_size = hidden // query_heads
    if heads is None or head_size is None or kv_factor != 2:
        return None
    # With fewer heads than ranks each rank holds a copy of one.
    return -(-heads // args.tensor_parallel_size) * head_size


def _same_bytes(pool: HostPool, elements: int, expected: int, kv_dtype: str) -> bool:
    size = dtype_bytes(kv_dtype)
    return (
        is_opaque(pool.dtype)
        and size is not None
        and elements * pool.element_bytes == expected * size
    )
