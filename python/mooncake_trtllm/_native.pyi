"""The core of the connector. Internal: names may change in any version."""

import enum
from collections.abc import Mapping, Sequence
from typing import Any

KEY_FORMAT_VERSION: int = 1

class KeyspaceIdentity:
    def __init__(self) -> None: ...
    @property
    def key_epoch(self) -> int: ...
    @key_epoch.setter
    def key_epoch(self, arg: int, /) -> None: ...
    @property
    def model_content(self) -> str: ...
    @model_content.setter
    def model_content(self, arg: str, /) -> None: ...
    @property
    def tokenizer(self) -> str: ...
    @tokenizer.setter
    def tokenizer(self, arg: str, /) -> None: ...
    @property
    def engine_layout(self) -> str: ...
    @engine_layout.setter
    def engine_layout(self, arg: str, /) -> None: ...
    @property
    def kv_dtype(self) -> str: ...
    @kv_dtype.setter
    def kv_dtype(self, arg: str, /) -> None: ...
    @property
    def kv_quantization(self) -> str: ...
    @kv_quantization.setter
    def kv_quantization(self, arg: str, /) -> None: ...
    @property
    def attention_backend(self) -> str: ...
    @attention_backend.setter
    def attention_backend(self, arg: str, /) -> None: ...
    @property
    def tokens_per_block(self) -> int: ...
    @tokens_per_block.setter
    def tokens_per_block(self, arg: int, /) -> None: ...
    @property
    def layers(self) -> list[int]: ...
    @layers.setter
    def layers(self, arg: Sequence[int], /) -> None: ...
    @property
    def bytes_per_page(self) -> int: ...
    @bytes_per_page.setter
    def bytes_per_page(self, arg: int, /) -> None: ...
    @property
    def kv_factor(self) -> int: ...
    @kv_factor.setter
    def kv_factor(self, arg: int, /) -> None: ...
    @property
    def element_bytes(self) -> int: ...
    @element_bytes.setter
    def element_bytes(self, arg: int, /) -> None: ...
    @property
    def tensor_parallel_size(self) -> int: ...
    @tensor_parallel_size.setter
    def tensor_parallel_size(self, arg: int, /) -> None: ...
    @property
    def pipeline_parallel_size(self) -> int: ...
    @pipeline_parallel_size.setter
    def pipeline_parallel_size(self, arg: int, /) -> None: ...
    @property
    def context_parallel_size(self) -> int: ...
    @context_parallel_size.setter
    def context_parallel_size(self, arg: int, /) -> None: ...
    @property
    def expert_parallel_size(self) -> int: ...
    @expert_parallel_size.setter
    def expert_parallel_size(self, arg: int, /) -> None: ...
    @property
    def layer_group(self) -> int: ...
    @layer_group.setter
    def layer_group(self, arg: int, /) -> None: ...
    @property
    def window_tokens(self) -> int: ...
    @window_tokens.setter
    def window_tokens(self, arg: int, /) -> None: ...
    def fingerprint(self) -> bytes:
        """128 bits that prefix every key."""

class ModelIdentity:
    @property
    def content(self) -> str: ...
    @property
    def tokenizer(self) -> str: ...
    @property
    def evidence(self) -> str: ...

def identify_model(
    folder: str | None,
    stated_revision: str | None = None,
    full_digest_limit_bytes: int | None = None,
) -> ModelIdentity:
    """What a model is, from its content. Reads files."""

class BlockChain:
    def __init__(
        self,
        tokens_per_block: int,
        *,
        cache_salt: object | None = None,
        lora: object | None = None,
        media: object = (),
        deployment_secret: bytes = ...,
    ) -> None:
        """Media items are (digest, start, length)."""

    def append(self, tokens: object) -> None: ...
    def blocks(self) -> list[bytes]:
        """Names of the complete blocks, in order."""

class ObjectKeys:
    def __init__(self, keyspace: bytes, *, by_layer: bool = False) -> None: ...
    def layer(self, block: bytes, rank: int, layer: int) -> str: ...
    def shard(self, block: bytes, rank: int) -> str: ...
    def ready(self, block: bytes, rank: int) -> str: ...
    def manifest(self, block: bytes) -> str: ...

BLOCK_HEADER_BYTES: int = 128

class ObjectKind(enum.Enum):
    SHARD = 1

    READY = 2

    MANIFEST = 3

class BlockDescription:
    def __init__(
        self,
        layout: bytes,
        block: bytes,
        *,
        rank: int,
        world_size: int,
        token_count: int,
        payload_bytes: int,
        kind: ObjectKind = ObjectKind.SHARD,
    ) -> None: ...

def seal_block(description: BlockDescription, payload: bytes) -> bytes:
    """The object that a store holds: header, then payload."""

def verify_block(expected: BlockDescription, stored: bytes) -> str:
    """Why the bytes are not that block, or none."""

class PoolGeometry:
    @property
    def layers(self) -> int: ...
    @property
    def kv_factor(self) -> int: ...
    @property
    def bytes_per_page(self) -> int: ...
    @property
    def element_bytes(self) -> int: ...

class DenseLayout:
    @property
    def geometry(self) -> PoolGeometry: ...

def describe_dense_pool(
    address: int, shape: Sequence[int], element_bytes: int, tokens_per_block: int
) -> DenseLayout:
    """Where the pages of a pool [blocks, layers, kv_factor, elements] lie."""

class HeadRemap:
    def __init__(
        self,
        *,
        order: str,
        from_ranks: int,
        to_ranks: int,
        layers: int,
        kv_heads: int,
        tokens_per_block: int,
        head_dim: int,
        element_bits: int,
        kv_factor: int = 2,
        packed_scales: bool = False,
    ) -> None:
        """Order is HND or NHD; anything else is not declared."""

    @property
    def from_ranks(self) -> int: ...
    @property
    def to_ranks(self) -> int: ...
    @property
    def source_bytes(self) -> int: ...
    @property
    def target_bytes(self) -> int: ...
    def sources_of(self, rank: int) -> list[int]:
        """Ranks whose payloads suffice."""

    def remap(self, payloads: Sequence[Any], rank: int) -> Any:
        """The payload of one rank of the new group, from those of the old one."""

class StepPlan:
    @property
    def keyspace(self) -> bytes: ...
    @property
    def loads_in_batch(self) -> bool: ...
    @property
    def loads_lost(self) -> bool: ...
    @property
    def loads(self) -> list[tuple[int, bytes, int]]: ...
    @property
    def saves(self) -> list[tuple[int, bytes, int]]: ...
    @property
    def hot(self) -> list[tuple[bytes, int]]: ...

def decode_step_plan(plan: bytes) -> StepPlan:
    """Tasks are (request, block, page)."""

def without_saves(plan: bytes) -> bytes:
    """The same plan with its loads only: nothing that changes the store."""

class Settings:
    """Names must be in setting_table(), types must fit."""

    @staticmethod
    def parse(
        environment: Mapping[str, str],
        *,
        overrides: Mapping[str, str] = {},
        file_text: str | None = None,
        file_name: str = "",
        store_file_text: str | None = None,
        store_file_name: str = "",
    ) -> Settings: ...
    def text(self, arg: str, /) -> str: ...
    def flag(self, arg: str, /) -> bool: ...
    def number(self, arg: str, /) -> int: ...
    def seconds(self, arg: str, /) -> float: ...
    def has_value(self, arg: str, /) -> bool: ...
    def warnings(self) -> list[str]: ...
    def describe(self) -> list[tuple[str, str, str]]:
        """Name, value and source of every setting that has a value."""

def setting_table() -> list[dict[str, Any]]:
    """The rows of the table, for its documentation."""

class Store:
    def exists(self, keys: list[str], timeout_s: float = 5.0) -> list[str]: ...
    def put(
        self, objects: list[tuple[str, bytes]], timeout_s: float = 5.0, replicas: int = 1
    ) -> list[tuple[str, str]]: ...
    def replicate(self, keys: list[str], replicas: int, timeout_s: float = 5.0) -> list[str]: ...
    def get(
        self, keys: list[str], capacity: int, timeout_s: float = 5.0
    ) -> list[tuple[str, bytes]]: ...
    def remove(self, keys: list[str], timeout_s: float = 5.0) -> list[str]: ...
    def capabilities(self) -> dict[str, bool | int | float]: ...
    def handle(self) -> Store:
        """One user's handle: closing it leaves the store open."""

    def close(self, timeout_s: float) -> None: ...
    def disown(self) -> None:
        """Give up without closing: after a fork, in the child."""

class MemoryStore(Store):
    def __init__(self, capacity_bytes: int, atomic_publish: bool = True) -> None: ...
    def keys(self) -> list[str]: ...
    def bytes_used(self) -> int: ...
    def evicted(self) -> int: ...

class FileStore(Store):
    def __init__(self, path: str, max_bytes: int) -> None:
        """Opens or makes the folder, which may take seconds after a boot."""

    def path(self) -> str: ...
    def stats(self) -> dict[str, int]: ...
    def take_stock(self) -> bool:
        """Counts what lies in the folder; false: others were at work."""

class GuardedStore(Store):
    def __init__(self, inner: Store, *, threads: int, max_abandoned: int) -> None:
        """Ends calls by their deadline, rests while the store is down."""

    def counters(self) -> dict[str, int]: ...
    def disown(self) -> None:
        """Give up without closing: after a fork, in the child."""

def open_mooncake_store(
    master: str,
    *,
    metadata_server: str = "P2PHANDSHAKE",
    protocol: str = "tcp",
    devices: str = "",
    local_hostname: str = "",
    tenant: str = "default",
    global_segment_bytes: int = 0,
    max_object_bytes: int = 268435456,
    admin: str = "",
) -> Store:
    """
    A client of a Mooncake Store that took and returned a canary object. Blocks without the
    GIL but for Mooncake's own setup(); call it where a second of waiting does no harm.
    """

def stat_table() -> dict[str, list[tuple[str, str, str, str]]]:
    """By owner: (family, reason, kind, help) of each figure."""

def latency_bounds() -> list[float]:
    """Upper bounds of all buckets but the last, in seconds."""

class StepBatch:
    def __init__(
        self, requests: list[tuple[int, bool, Sequence[int], Sequence[int], int, int]]
    ) -> None:
        """Of (request, is_new, new tokens, new pages, computed, scheduled)."""

class Scheduler:
    def __init__(
        self,
        store: Store,
        keyspace: bytes,
        *,
        tokens_per_block: int,
        world_size: int,
        deployment_secret: bytes,
        lookup_deadline_s: float,
        exact_pages: bool,
        layers: int = 0,
        max_replicas: int = 1,
        hot_at: float = 8.0,
        half_life_s: float = 600.0,
        ranks: int = 1,
        stage_worker: Worker | None = None,
        stage_address: str = "",
        prefill_tokens_per_s: int = 0,
        min_hit_blocks: int = 1,
    ) -> None:
        """`stage_worker`: rank 0's, with its pool, for staged promises."""

    def query(
        self,
        request: int,
        tokens: Sequence[int],
        *,
        prompt_tokens: int,
        cache_salt: str | int | None,
        lora: str | None,
        media: list[tuple[bytes, int, int]],
        computed_tokens: int,
        load_budget: int | None,
    ) -> int:
        """Tokens promised; `load_budget` bounds the blocks of one step."""

    def allocated(self, request: int, slots: Sequence[int]) -> bool:
        """False if the request is not known: its promise is lost."""

    def plan_step(self, batch: StepBatch) -> bytes:
        """An exception loses the loads that were to be planned."""

    def finished(self, request: int) -> None: ...
    def cancel_load(self, request: int, start_tokens: int) -> None: ...
    def stats(self) -> dict[str, int]: ...
    def latencies(self) -> dict[str, tuple[list[int], float]]: ...
    def explain(self) -> list[str]:
        """A line for each of the last requests asked about, oldest first."""

    def note_opted_out(self, request: int, why: str) -> None:
        """For explain() alone."""

    def disown(self) -> None:
        """Give up without cleaning up: after a fork, in the child."""

class Worker:
    def __init__(
        self,
        store: Store,
        *,
        rank: int,
        world_size: int,
        tokens_per_block: int,
        staging_bytes: int,
        save_queue_bytes: int,
        load_deadline_s: float,
        save_deadline_s: float,
        threads: int,
        by_layer: bool = False,
        replicated: bool = False,
        overlap_loads: bool = True,
        replication_bytes_per_second: int = 67108864,
        staged: bool = False,
    ) -> None: ...
    def register_layout(self, keyspace: bytes, layout: DenseLayout) -> None:
        """The pages must outlive this object."""

    def bind(self, plan: bytes) -> None:
        """No bytes: nothing to do in this step."""

    def load(self, stream: int) -> list[tuple[int, str, str, str]]:
        """Failures as (request, key, code, message)."""

    def wait_for_layer(self, layer: int, stream: int) -> list[tuple[int, str, str, str]]:
        """Failures as of load()."""

    def layer_computed(self, layer: int, stream: int) -> None: ...
    def save(self, stream: int) -> list[tuple[int, str, str, str]]:
        """Failures as of load(): pages that the pass did not wait for."""

    def end_loads(self) -> None: ...
    def layers_stored_apart(self) -> int: ...
    def drain(self, timeout_s: float) -> bool: ...
    def close(self, timeout_s: float) -> None: ...
    def load_budget_blocks(self) -> int: ...
    def stats(self) -> dict[str, int]: ...
    def latencies(self) -> dict[str, tuple[list[int], float]]: ...
    def disown(self) -> None:
        """Give up without cleaning up: after a fork, in the child."""
