"""A stream of prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

__all__ = ["Tokens", "Workload"]

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Workload:
    """Prompts are made one at a time, the same each time they are asked for."""

    name: str
    tokens_per_block: int
    """The block size that the workload is defined with."""
    prompt_lengths: tuple[int, ...]
    make: Callable[[int], Tokens]

    def __len__(self) -> int:
        """The number of requests."""
        return len(self.prompt_lengths)

    def __iter__(self) -> Iterator[Tokens]:
        """The prompts in order."""
        return (self.make(index) for index in range(len(self)))

    def first(self, count: int) -> Workload:
        """The same without what follows the first `count` requests."""
        return replace(self, prompt_lengths=self.prompt_lengths[:count])

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(self.prompt_lengths)
