"""`SchedulerOutput` and its `RequestData`: what the runtime tells the connector of a batch."""

from __future__ import annotations

from mooncake_trtllm.simulator.config import InstanceConfig
from mooncake_trtllm.simulator.messages import (
    SchedulerOutput,
    early_request_data,
    request_data,
)
from mooncake_trtllm.simulator.record import Record, State

__all__ = ["BatchReporter"]


class BatchReporter:
    """Builds the output of a batch and remembers what was reported of each request."""

    def __init__(self, config: InstanceConfig) -> None:
        self._config = config

    def build(self, batch: list[Record] | None, *, leader: bool) -> SchedulerOutput | None:
        """Append deltas against the last report; every rank keeps count, the leader builds."""
        if batch is None:
            return None
        output = SchedulerOutput()
        for record in batch:
            if leader:
                self._append(output, record)
            record.reported = True
            record.reported_tokens = record.known
            record.reported_blocks = len(record.blocks)
        return output

    def _append(self, output: SchedulerOutput, record: Record) -> None:
        generating = record.state is State.GENERATION
        if generating:
            computed = record.known - 1
        elif record.match_is_news:
            # The promise was made in this very iteration: the load begins behind the local match.
            computed = record.position - record.promised_tokens
        else:
            computed = record.position
        tokens = record.tokens[record.reported_tokens : record.known]
        blocks = record.blocks[record.reported_blocks :]
        known_as_new = not record.reported and not generating
        target = output.new_requests if known_as_new else output.cached_requests
        if self._config.shape == "1.1":
            target.append(
                early_request_data(record.request_id, tokens, blocks, computed, record.chunk)
            )
            return
        size = self._config.geometry.tokens_per_block
        hashes = record.prefix.words[size - 1 : record.known : size].tolist()
        target.append(
            request_data(
                record.request_id, tokens, blocks, computed, record.chunk, hashes, record.prompt
            )
        )
