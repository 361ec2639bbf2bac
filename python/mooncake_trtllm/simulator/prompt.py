"""What a user of the simulator asks for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["Media", "Prompt"]


@dataclass(frozen=True)
class Media:
    """An image or sound whose content replaces the tokens [start, start + length)."""

    digest: bytes
    start: int
    length: int

    def __post_init__(self) -> None:
        """Refuses digests that the runtime cannot carry."""
        if len(self.digest) != 32:
            raise ValueError(
                f"media digest of {len(self.digest)} bytes: the runtime carries 32; "
                "remedy: pass a 32-byte digest"
            )

    @property
    def word(self) -> int:
        """64 bits that stand for the content."""
        return int.from_bytes(hashlib.blake2b(self.digest, digest_size=8).digest(), "little")

    def bound_hash(self) -> list[int]:
        """The digest as the runtime shows it: eight signed 32-bit numbers, big-endian."""
        return [
            int.from_bytes(self.digest[at : at + 4], "big", signed=True) for at in range(0, 32, 4)
        ]


@dataclass(frozen=True)
class Prompt:
    """One request."""

    tokens: Sequence[int] | npt.NDArray[np.integer]
    max_new_tokens: int = 1
    cache_salt: str | int | None = None
    """A string is the runtime's newer `cache_salt`, an integer its older `cache_salt_id`."""
    lora_task_id: int | None = None
    media: tuple[Media, ...] = ()
    eos_after: int | None = None
    """Ends after this many new tokens, which the scheduler cannot foresee."""
    retries: int = 0
    """How often the request is sent again, under a new id, after it failed closed."""
    attributes: Mapping[str, object] = field(default_factory=dict)
    """Further attributes of the bound request, such as `prompt_embedding_table`."""

    def __post_init__(self) -> None:
        """Refuses what the runtime would refuse."""
        if len(self.tokens) < 1:
            raise ValueError("a prompt of 0 tokens cannot be run; remedy: at least one token")
        if self.max_new_tokens < 1:
            raise ValueError(
                f"max_new_tokens={self.max_new_tokens}: must be at least 1; remedy: raise it"
            )

    def token_array(self) -> npt.NDArray[np.integer]:
        """The tokens as an array."""
        if isinstance(self.tokens, np.ndarray):
            return self.tokens
        return np.asarray(self.tokens, dtype=np.int64)

    def token_list(self) -> list[int]:
        """The tokens as a list of Python integers."""
        if isinstance(self.tokens, np.ndarray):
            return [*self.tokens.tolist()]
        return [int(token) for token in self.tokens]

    @property
    def identified(self) -> bool:
        """Whether the request's content can be named, so that its blocks should be saved."""
        return self.lora_task_id is None and not self.attributes
