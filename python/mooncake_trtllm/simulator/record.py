"""The simulator's own record of a request, and the result that its user gets."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from mooncake_trtllm.simulator.blocks import LocalMatch
from mooncake_trtllm.simulator.messages import BoundRequest
from mooncake_trtllm.simulator.oracle import PrefixHash
from mooncake_trtllm.simulator.prompt import Prompt

__all__ = ["Record", "RequestResult", "State"]


class State(enum.Enum):
    """Where a request stands."""

    WAITING = "waiting"
    LOADING = "loading"
    CONTEXT = "context"
    GENERATION = "generation"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Whether nothing more will be computed."""
        return self in (State.FINISHED, State.CANCELLED, State.FAILED)


@dataclass
class RequestResult:
    """What became of one submitted prompt; of several attempts the last one counts."""

    ticket: int
    request_ids: list[int]
    state: str
    prompt_tokens: int
    blocks_matchable: int
    """`(n - 1) // tokens_per_block`: what an unlimited cache could serve of this prompt."""
    local_tokens: int = 0
    blocks_hit: int = 0
    """Promised by the connector in the last attempt."""
    blocks_verified: int = 0
    """Of those, the blocks whose bytes were right on every rank."""
    tokens_computed: int = 0
    retries: int = 0
    errors: list[str] = field(default_factory=list)
    """One text for each attempt that failed closed."""
    new_tokens: list[int] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the last attempt ran to its end."""
        return self.state == State.FINISHED.value


class Record:
    """One attempt of one prompt on one rank."""

    def __init__(
        self,
        ticket: int,
        request_id: int,
        prompt: Prompt,
        tokens: list[int],
        prefix: PrefixHash,
        scope: object,
    ) -> None:
        self.ticket = ticket
        self.request_id = request_id
        self.prompt = prompt
        self.tokens = tokens
        """Prompt and sampled tokens, as the device knows them."""
        self.known = len(tokens)
        """How many of them the host knows: the overlap scheduler lags one step."""
        self.prompt_len = len(tokens)
        self.prefix = prefix
        self.scope = scope
        self.state = State.WAITING
        self.blocks: list[int] = []
        self.match = LocalMatch([])
        self.local_tokens = 0
        self.promised_tokens = 0
        self.match_is_news = False
        """A synchronous promise made in this very iteration."""
        self.position = 0
        """The next position to compute."""
        self.chunk = 0
        self.kv_tokens = 0
        """Positions whose KV is in place."""
        self.computed_tokens = 0
        self.verified_blocks = 0
        self.reported = False
        self.reported_tokens = 0
        self.reported_blocks = 0
        self.saves_counted = 0
        """Blocks whose saving the connector could have been told of."""
        self.cancelled = False
        self.pin_asked = False
        """`request_finished` has returned True."""

    @property
    def total_tokens(self) -> int:
        """Tokens at the end, as far as the scheduler can foresee."""
        return self.prompt_len + self.prompt.max_new_tokens

    @property
    def produced(self) -> int:
        """New tokens sampled so far."""
        return len(self.tokens) - self.prompt_len

    @property
    def at_end(self) -> bool:
        """Whether the host knows that generation is over."""
        limit = self.prompt.max_new_tokens
        if self.prompt.eos_after is not None:
            limit = min(limit, self.prompt.eos_after)
        return self.known - self.prompt_len >= limit

    def bound(self) -> BoundRequest:
        """A fresh object for a callback."""
        return BoundRequest(
            self.request_id,
            self.prompt,
            self.tokens[: self.known],
            self.prompt_len,
            position=min(self.position, self.prompt_len),
            chunk=self.chunk,
            finished=self.state is State.FINISHED,
            cancelled=self.cancelled,
        )
