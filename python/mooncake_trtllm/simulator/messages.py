"""The objects that the runtime hands to a connector, in the shapes of its versions.

All of them are built afresh for each call and hold copies: a connector that keeps one, or writes to
it, cannot disturb the simulation, nor can it learn more than the runtime would tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mooncake_trtllm.simulator.prompt import Prompt

__all__ = ["BoundRequest", "HostStream", "SchedulerOutput", "early_request_data", "request_data"]


class HostStream:
    """Stands for `torch.cuda.Stream` where memory is the host's."""

    cuda_stream = 0

    def synchronize(self) -> None:
        """Returns at once: there is nothing to wait for."""


class BoundRequest:
    """The request as the C++ binding shows it: bound attributes alone."""

    __slots__ = (
        "_extra",
        "_tokens",
        "cache_salt",
        "cache_salt_id",
        "context_chunk_size",
        "context_current_position",
        "context_remaining_length",
        "is_dummy_request",
        "is_finished",
        "is_finished_due_to_cancellation",
        "is_first_context_chunk",
        "is_generation_only_request",
        "kv_cache_retention_config",
        "lora_task_id",
        "multimodal_hashes",
        "multimodal_lengths",
        "multimodal_positions",
        "prompt_len",
        "request_id",
    )

    def __init__(
        self,
        request_id: int,
        prompt: Prompt,
        tokens: list[int],
        prompt_len: int,
        *,
        position: int,
        chunk: int,
        finished: bool = False,
        cancelled: bool = False,
    ) -> None:
        self.request_id = request_id
        self._tokens = tokens
        self.prompt_len = prompt_len
        self.context_current_position = position
        self.context_remaining_length = max(prompt_len - position, 0)
        self.context_chunk_size = chunk
        self.is_first_context_chunk = position == 0
        self.is_finished = finished
        self.is_finished_due_to_cancellation = cancelled
        self.is_dummy_request = False
        self.is_generation_only_request = False
        self.kv_cache_retention_config = None
        self.lora_task_id = prompt.lora_task_id
        salt = prompt.cache_salt
        self.cache_salt = salt if isinstance(salt, str) else None
        self.cache_salt_id = salt if isinstance(salt, int) else None
        media = prompt.media
        self.multimodal_hashes = [item.bound_hash() for item in media] if media else None
        self.multimodal_positions = [item.start for item in media] if media else None
        self.multimodal_lengths = [item.length for item in media] if media else None
        self._extra = dict(prompt.attributes)
        for name in ("is_dummy_request", "is_generation_only_request", "multimodal_hashes"):
            if name in self._extra:
                setattr(self, name, self._extra[name])

    def __getattr__(self, name: str) -> object:
        """Attributes that only some requests have."""
        if name != "_extra" and name in self._extra:
            return self._extra[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def get_tokens(self, beam: int) -> list[int]:
        """A copy of all tokens known to the host."""
        if beam != 0:
            raise IndexError(f"beam {beam} of 1")
        return self._tokens.copy()


@dataclass
class RequestData:
    """Of runtime 1.3 and 1.4."""

    request_id: int
    new_tokens: list[int]
    new_block_ids: list[int]
    computed_position: int
    num_scheduled_tokens: int
    block_hashes: list[int] = field(default_factory=list)
    priorities: list[int] | None = None
    cache_salt: str | None = None


@dataclass
class EarlyRequestData:
    """Of runtime 1.1."""

    request_id: int
    new_tokens: list[int]
    new_block_ids: list[int]
    computed_position: int
    num_scheduled_tokens: int


@dataclass
class SchedulerOutput:
    """The executed batch, as `build_connector_meta` sees it."""

    new_requests: list[RequestData | EarlyRequestData] = field(default_factory=list)
    cached_requests: list[RequestData | EarlyRequestData] = field(default_factory=list)


def request_data(
    request_id: int,
    new_tokens: list[int],
    new_block_ids: list[int],
    computed_position: int,
    num_scheduled_tokens: int,
    block_hashes: Sequence[int],
    prompt: Prompt,
) -> RequestData:
    """One entry in the later shape."""
    salt = prompt.cache_salt
    return RequestData(
        request_id,
        new_tokens,
        new_block_ids,
        computed_position,
        num_scheduled_tokens,
        list(block_hashes),
        None,
        salt if isinstance(salt, str) else None,
    )


def early_request_data(
    request_id: int,
    new_tokens: list[int],
    new_block_ids: list[int],
    computed_position: int,
    num_scheduled_tokens: int,
) -> EarlyRequestData:
    """One entry in the shape of 1.1."""
    return EarlyRequestData(
        request_id, new_tokens, new_block_ids, computed_position, num_scheduled_tokens
    )
