"""How a simulated instance is built and how it behaves."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Protocol

from mooncake_trtllm.simulator.geometry import Geometry
from mooncake_trtllm.simulator.model_folder import ModelFolder

__all__ = ["LAYER_HOOKS", "ConnectorNames", "InstanceConfig", "make_llm_args"]

LAYER_HOOKS = ("each", "reversed", "twice", "some", "none", "unsteady")


class ConnectorConfig(Protocol):
    """The three fields of the runtime's `KvCacheConnectorConfig` by which classes are found."""

    connector_module: str
    connector_scheduler_class: str
    connector_worker_class: str


@dataclass(frozen=True)
class ConnectorNames:
    """Where the classes are, as plain text that crosses process borders."""

    connector_module: str
    connector_scheduler_class: str
    connector_worker_class: str

    @classmethod
    def of(cls, config: ConnectorConfig) -> ConnectorNames:
        """The names in a connector configuration."""
        return cls(
            config.connector_module,
            config.connector_scheduler_class,
            config.connector_worker_class,
        )

    @classmethod
    def default(cls) -> ConnectorNames:
        """What a user's four lines would select."""
        return _default_names()


@functools.cache
def _default_names() -> ConnectorNames:
    module = importlib.import_module("mooncake.tensorrt_llm")
    return ConnectorNames.of(module.make_kv_connector_config())


@dataclass(frozen=True)
class InstanceConfig:
    """One engine instance."""

    model: ModelFolder
    geometry: Geometry
    tp: int = 1
    ranks: str = "threads"
    """`threads` of this process, or `processes` of their own."""
    connector: ConnectorNames | None = None
    """None: the product's own, by `make_kv_connector_config()`."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Set for the ranks: in their own processes, or in this one while they start."""
    llm_args: Mapping[str, object] = field(default_factory=dict)
    """Overrides of `TorchLlmArgs` attributes by dotted name."""
    pool_geometry: Geometry | None = None
    """A pool that does not fit the model's configuration; None: one that does."""
    lora_contents: Mapping[int, str] = field(default_factory=dict)
    """What each `lora_task_id` means on this instance; by default the number itself."""

    pool_blocks: int = 256
    max_batch: int = 8
    max_num_tokens: int = 8192
    chunked_prefill: bool = True
    aligned_chunks: bool = True
    """False: chunks end anywhere, as after the newest builds' trimming."""
    overlap: bool = False
    block_reuse: bool = True
    partial_reuse: bool = False
    batched_queries: bool = True
    """All queries of a batch before its first allocation (newer builds), or each beside its own."""
    shape: str = "1.3"
    """Which runtime's objects and endings: `1.1` or `1.3`."""
    layer_hooks: str = "each"
    """How the layer hooks fire: for `each` layer, in `reversed` order, `twice`, for `some` layers,
    for `none`; or for each, but not in every third pass (`unsteady`)."""
    cuda_graphs: bool = False
    """Batches without prefill fire no layer hooks."""
    unguarded_metadata: bool = False
    """Idle turns call `build_connector_meta(None)`, as some nightlies did."""
    vocabulary: int = 32000

    load_gate: str | None = None
    """A path: while something is there, a step that has promised loads stops before it makes them,
    and rank 0 says so by making `<path>.reached`."""
    quiet: bool = False
    """Ranks that are processes print to a file that is shown only when one of them dies."""
    callback_bound_s: float = 5.0
    hang_timeout_s: float = 60.0
    stall_timeout_s: float = 60.0
    expect_saves: bool = True
    """False where the store may refuse or the user has switched saving off (I7's lower bound)."""

    def __post_init__(self) -> None:
        """Refuses combinations that no runtime has."""
        checks = (
            ("ranks", self.ranks, ("threads", "processes")),
            ("shape", self.shape, ("1.1", "1.3")),
            ("layer_hooks", self.layer_hooks, LAYER_HOOKS),
        )
        for name, value, allowed in checks:
            if value not in allowed:
                raise ValueError(f"{name}={value!r}: unknown; remedy: one of {', '.join(allowed)}")
        if self.tp < 1:
            raise ValueError(f"tp={self.tp}: must be at least 1; remedy: raise it")
        self.geometry.heads_per_rank(self.tp)
        if self.max_num_tokens < self.geometry.tokens_per_block:
            raise ValueError(
                f"max_num_tokens={self.max_num_tokens}: less than one block of "
                f"{self.geometry.tokens_per_block} tokens; remedy: raise it"
            )


def make_llm_args(config: InstanceConfig, connector: ConnectorNames) -> SimpleNamespace:
    """What the runtime passes to both constructors: attributes of `TorchLlmArgs` alone."""
    model, geometry = config.model, config.geometry
    kv_dtype = "auto" if geometry.dtype == model.dtype else geometry.dtype
    arguments = SimpleNamespace(
        model=str(model.path),
        dtype=model.dtype,
        tensor_parallel_size=config.tp,
        pipeline_parallel_size=1,
        context_parallel_size=1,
        moe_expert_parallel_size=None,
        enable_attention_dp=False,
        gpus_per_node=max(config.tp, 1),
        kv_cache_config=SimpleNamespace(
            tokens_per_block=geometry.tokens_per_block,
            dtype=kv_dtype,
            enable_block_reuse=True,
            enable_partial_reuse=config.partial_reuse,
            host_cache_size=0,
            max_attention_window=None,
            max_tokens=config.pool_blocks * geometry.tokens_per_block,
            free_gpu_memory_fraction=0.9,
            use_kv_cache_manager_v2=False,
        ),
        enable_chunked_prefill=config.chunked_prefill,
        max_num_tokens=config.max_num_tokens,
        max_seq_len=config.pool_blocks * geometry.tokens_per_block,
        max_beam_width=1,
        disable_overlap_scheduler=not config.overlap,
        cuda_graph_config=SimpleNamespace() if config.cuda_graphs else None,
        torch_compile_config=None,
        scheduler_config=SimpleNamespace(capacity_scheduler_policy="GUARANTEED_NO_EVICT"),
        speculative_config=None,
        sparse_attention_config=None,
        quant_config=None,
        attn_backend="TRTLLM",
        lora_config=None,
        cache_transceiver_config=None,
        kv_connector_config=SimpleNamespace(
            connector_module=connector.connector_module,
            connector_scheduler_class=connector.connector_scheduler_class,
            connector_worker_class=connector.connector_worker_class,
        ),
    )
    for name, value in config.llm_args.items():
        target: object = arguments
        *path, leaf = name.split(".")
        for part in path:
            target = getattr(target, part)
        setattr(target, leaf, value)
    return arguments
