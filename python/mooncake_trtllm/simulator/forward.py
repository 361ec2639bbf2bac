"""The forward pass: checks what it reads, writes what it computes, samples (I1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mooncake_trtllm.simulator.calls import WorkerCalls
from mooncake_trtllm.simulator.config import InstanceConfig
from mooncake_trtllm.simulator.ledger import Ledger
from mooncake_trtllm.simulator.oracle import Oracle
from mooncake_trtllm.simulator.pool import Pool
from mooncake_trtllm.simulator.record import Record, State
from mooncake_trtllm.simulator.violations import InvariantError

__all__ = ["ForwardPass", "Step"]

Step = tuple[Record, int]
"""A request of an executed batch and how many tokens it sampled."""


class ForwardPass:
    """Runs batches on one rank."""

    def __init__(
        self,
        config: InstanceConfig,
        oracle: Oracle,
        pool: Pool,
        worker: WorkerCalls,
        ledger: Ledger,
    ) -> None:
        self._config = config
        self._oracle = oracle
        self._pool = pool
        self._worker = worker
        self._ledger = ledger
        self._passes = 0
        self._wrong: str | None = None

    def compute(self, batch: Sequence[Record]) -> None:
        """All layers and the forward callable.

        A KvConnectorError of a hook comes through: the pass has failed.
        """
        layers = range(self._config.geometry.layers)
        calls = self._hook_calls(batch)
        for layer in reversed(layers) if self._config.layer_hooks == "reversed" else layers:
            for _ in range(calls(layer)):
                self._worker.before_layer(layer)
            for record in batch:
                self._layer(record, layer)
            for _ in range(calls(layer)):
                self._worker.after_layer(layer)
        self._worker.forward_done()

    def end(self, batch: Sequence[Record]) -> list[Step]:
        """`wait_for_save`, then at most one token each. Only once the pass succeeded on all ranks.

        A KvConnectorError of the callback comes through: the pass has failed.
        """
        wrong, self._wrong = self._wrong, None
        self._worker.wait_for_save()
        if wrong is not None:
            raise InvariantError("I1", wrong)
        return [(record, self._advance(record)) for record in batch]

    def _hook_calls(self, batch: Sequence[Record]) -> Callable[[int], int]:
        """How often the hooks of a layer fire in this pass."""
        how = self._config.layer_hooks
        self._passes += 1
        self._wrong = None
        replayed = self._config.cuda_graphs and all(
            record.state is State.GENERATION for record in batch
        )
        if replayed or how == "none" or (how == "unsteady" and self._passes % 3 == 0):
            return lambda _layer: 0
        if how == "some":
            return lambda layer: layer % 2
        return lambda _layer: 2 if how == "twice" else 1

    def _layer(self, record: Record, layer: int) -> None:
        """Attention reads every earlier position, so all of them must be right by now."""
        start = record.position
        wrong = self._oracle.first_wrong(self._pool, record.blocks, record.prefix, layer, 0, start)
        if wrong is not None:
            blame = self._blame(record, layer, wrong)
            if self._config.layer_hooks != "unsteady":
                raise InvariantError("I1", blame)
            # The connector could not know before the pass; it must say so when the pass ends.
            self._wrong = self._wrong or blame
        self._oracle.write(
            self._pool, record.blocks, record.prefix, layer, start, start + record.chunk
        )

    def _blame(self, record: Record, layer: int, position: int) -> str:
        local, promised = record.local_tokens, record.promised_tokens
        if position < local:
            origin = "matched locally"
        elif position < local + promised:
            origin = "promised by the connector"
        else:
            origin = "computed by this request"
        page = record.blocks[position // self._config.geometry.tokens_per_block]
        return (
            f"request {record.request_id}, layer {layer}, position {position} ({origin}, page "
            f"{page}): bytes differ from the oracle's; local match {local}, promised {promised}, "
            f"pass begins at {record.position}"
        )

    def _advance(self, record: Record) -> int:
        size = self._config.geometry.tokens_per_block
        if record.computed_tokens == 0:
            record.verified_blocks = record.promised_tokens // size
        record.match_is_news = False
        record.computed_tokens += record.chunk
        record.position += record.chunk
        record.kv_tokens = record.position
        self._count_saves(record, min(record.position, record.known))
        if record.position < record.prompt_len:
            return 0
        record.state = State.GENERATION
        token = self._oracle.next_token(record.prefix, self._config.vocabulary)
        record.tokens.append(token)
        self._oracle.extend(record.prefix, [token])
        return 1

    def _count_saves(self, record: Record, bound: int) -> None:
        """Blocks that the connector could have learned, by the safe-save rule, to be complete."""
        size = self._config.geometry.tokens_per_block
        high = bound // size
        if high > record.saves_counted:
            self._ledger.blocks_savable += high - record.saves_counted
            computed_from = (record.local_tokens + record.promised_tokens) // size
            low = max(record.saves_counted, computed_from)
            if record.prompt.identified:
                self._ledger.blocks_fresh += max(min(high, record.prompt_len // size) - low, 0)
            record.saves_counted = high

    def count_final_saves(self, record: Record) -> None:
        """At `request_finished` one more block may have become known to be complete."""
        size = self._config.geometry.tokens_per_block
        high = max(record.known - 1, 0) // size
        if high > record.saves_counted:
            self._ledger.blocks_savable += high - record.saves_counted
            record.saves_counted = high
