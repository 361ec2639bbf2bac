"""Every call into the connector goes through here, timed, guarded and judged (I2, I3, I5, I8)."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable
from typing import Any

from mooncake_trtllm.simulator.ledger import CallbackTime, Ledger
from mooncake_trtllm.simulator.messages import BoundRequest, HostStream, SchedulerOutput
from mooncake_trtllm.simulator.pool import HostTensor
from mooncake_trtllm.simulator.violations import InvariantError, is_connector_error

__all__ = ["SchedulerCalls", "WorkerCalls"]


# Callbacks that may say that a promised block is not in place.
_MAY_FAIL = ("start_load_kv", "wait_for_layer_load", "wait_for_save")


class _Calls:
    """Times a callback and turns whatever it raises into a broken invariant."""

    def __init__(self, ledger: Ledger, bound_s: float, beat: Callable[[], None]) -> None:
        self._ledger = ledger
        self._bound_s = bound_s
        self._beat = beat

    def _call(self, name: str, function: Callable[..., Any], *arguments: object) -> Any:
        begin = time.perf_counter()
        try:
            return function(*arguments)
        except Exception as error:
            if name in _MAY_FAIL and is_connector_error(error):
                raise
            raise InvariantError("I8", f"{name} raised {type(error).__name__}: {error}") from error
        finally:
            seconds = time.perf_counter() - begin
            self._ledger.callbacks.setdefault(name, CallbackTime()).add(seconds)
            self._beat()
            if seconds > self._bound_s:
                raise InvariantError(
                    "I5", f"{name} took {seconds:.3f} s, the bound is {self._bound_s:.3f} s"
                )


class SchedulerCalls(_Calls):
    """The leader's callbacks."""

    def __init__(
        self,
        scheduler: Any,
        tokens_per_block: int,
        ledger: Ledger,
        bound_s: float,
        beat: Callable[[], None],
    ) -> None:
        super().__init__(ledger, bound_s, beat)
        self.scheduler = scheduler
        self._tokens_per_block = tokens_per_block

    def query(self, request: BoundRequest, local_tokens: int) -> tuple[int, bool]:
        """`get_num_new_matched_tokens`, its answer judged by I2."""
        self._ledger.queries += 1
        answer = self._call(
            "get_num_new_matched_tokens",
            self.scheduler.get_num_new_matched_tokens,
            request,
            local_tokens,
        )
        tokens, is_async = self._judge(answer, local_tokens, request.prompt_len)
        self._ledger.blocks_promised += tokens // self._tokens_per_block
        return tokens, is_async

    def _judge(self, answer: object, local_tokens: int, prompt_len: int) -> tuple[int, bool]:
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise InvariantError("I2", f"the promise is {answer!r}, not a pair")
        tokens, is_async = answer
        if (
            isinstance(tokens, bool)
            or not isinstance(tokens, int)
            or not isinstance(is_async, bool)
        ):
            raise InvariantError("I2", f"the promise is {answer!r}, not (int, bool)")
        size = self._tokens_per_block
        if tokens < 0 or tokens % size:
            raise InvariantError("I2", f"{tokens} tokens are no whole blocks of {size}")
        if tokens == 0 and is_async:
            raise InvariantError("I2", "an asynchronous promise of 0")
        if tokens and local_tokens % size:
            raise InvariantError(
                "I2", f"{tokens} tokens promised after an unaligned local match of {local_tokens}"
            )
        if tokens and local_tokens + tokens > prompt_len - 1:
            raise InvariantError(
                "I2",
                f"local {local_tokens} + promised {tokens} leave nothing of "
                f"{prompt_len} prompt tokens to compute",
            )
        return tokens, is_async

    def allocated(self, request: BoundRequest, blocks: list[int]) -> None:
        """`update_state_after_alloc`; what it returns is ignored."""
        self._call(
            "update_state_after_alloc", self.scheduler.update_state_after_alloc, request, blocks
        )

    def build(self, output: SchedulerOutput | None) -> bytes:
        """`build_connector_meta`, pickled as the broadcast does."""
        metadata = self._call("build_connector_meta", self.scheduler.build_connector_meta, output)
        try:
            wire = pickle.dumps(metadata)
        except Exception as error:
            raise InvariantError("I8", f"the metadata cannot be pickled: {error}") from error
        self._ledger.metadata_bytes_max = max(self._ledger.metadata_bytes_max, len(wire))
        return wire

    def finished(self, request: BoundRequest, blocks: list[int]) -> bool:
        """`request_finished`."""
        answer = self._call("request_finished", self.scheduler.request_finished, request, blocks)
        if not isinstance(answer, bool):
            raise InvariantError("I3", f"request_finished returned {answer!r}, not a bool")
        return answer

    def wait_for_initialization(self) -> None:
        """Of 1.3 and later."""
        if hasattr(self.scheduler, "wait_for_initialization"):
            self.scheduler.wait_for_initialization()


class WorkerCalls(_Calls):
    """One rank's worker callbacks."""

    def __init__(
        self, worker: Any, ledger: Ledger, bound_s: float, beat: Callable[[], None]
    ) -> None:
        super().__init__(ledger, bound_s, beat)
        self.worker = worker
        self._stream = HostStream()
        self._saves_given: set[int] = set()
        self._loads_given: set[int] = set()
        self._forward_pass_callable: Callable[[], object] | None = None

    def register(self, tensor: HostTensor) -> None:
        """The runtime's order at start-up; errors here are start-up errors."""
        function = self.worker.register_forward_pass_callable()
        self._forward_pass_callable = function or None
        self.worker.register_kv_caches(tensor)

    def bind(self, wire: bytes) -> None:
        """`bind_connector_meta`, with what came out of the broadcast."""
        # Our own rank 0 pickled it a moment ago.
        metadata = pickle.loads(wire)  # noqa: S301
        self._call("bind_connector_meta", self.worker.bind_connector_meta, metadata)

    def start_load(self) -> None:
        """`start_load_kv`; a KvConnectorError comes through."""
        self._call("start_load_kv", self.worker.start_load_kv, self._stream)

    def before_layer(self, layer: int) -> None:
        """The pre-hook of a decoder layer; a KvConnectorError comes through."""
        self._call("wait_for_layer_load", self.worker.wait_for_layer_load, layer, self._stream)

    def after_layer(self, layer: int) -> None:
        """The hook of a decoder layer."""
        self._call("save_kv_layer", self.worker.save_kv_layer, layer, self._stream)

    def forward_done(self) -> None:
        """The forward callable, inside the pass."""
        if self._forward_pass_callable is not None:
            self._call("forward_pass_callable", self._forward_pass_callable)

    def wait_for_save(self) -> None:
        """`wait_for_save`, after the pass; a KvConnectorError comes through."""
        self._call("wait_for_save", self.worker.wait_for_save, self._stream)

    def get_finished(
        self, finished: Iterable[int], started: Iterable[int]
    ) -> tuple[list[int], list[int]]:
        """`get_finished`, its answer judged by I3."""
        finished, started = list(finished), list(started)
        self._saves_given.update(finished)
        self._loads_given.update(started)
        answer = self._call("get_finished", self.worker.get_finished, finished, started)
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise InvariantError("I3", f"get_finished returned {answer!r}, not a pair")
        saved = self._reported("saved", answer[0], self._saves_given)
        loaded = self._reported("loaded", answer[1], self._loads_given)
        return saved, loaded

    @staticmethod
    def _reported(direction: str, ids: Iterable[int], given: set[int]) -> list[int]:
        reported = list(ids)
        for request_id in reported:
            if request_id not in given:
                raise InvariantError(
                    "I3",
                    f"get_finished reports {direction} id {request_id}, "
                    "which it was not given or has reported before",
                )
            given.remove(request_id)
        return reported
