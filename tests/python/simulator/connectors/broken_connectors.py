"""Variants of the reference connector that each differ from it in one deed.

One named invariant must catch each of them.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

from simulator.connectors.reference_connector import (
    STORE,
    Key,
    KvConnectorConfigError,
    KvConnectorError,
    KvConnectorStoreError,
    PinningScheduler,
    PinningWorker,
    Scheduler,
    Tracked,
    Worker,
)

__all__ = ["PinningScheduler", "PinningWorker", "Scheduler", "Worker"]


class FlipsAByteWorker(Worker):
    """I1: what it loads differs in one bit of one byte."""

    def write(self, page: int, data: bytes) -> None:
        super().write(page, data[:-1] + bytes([data[-1] ^ 1]))


class WrongPageWorker(Worker):
    """I1: the loads of a step land in each other's pages."""

    def start_load_kv(self, stream: Any) -> None:
        pages = [page for _, _, page in self.plan.loads]
        shifted = pages[1:] + pages[:1]
        self.plan.loads = [
            (request_id, key, page)
            for (request_id, key, _), page in zip(self.plan.loads, shifted, strict=True)
        ]
        super().start_load_kv(stream)


class SkipsLastLoadWorker(Worker):
    """I1: the last promised block of a step is never loaded."""

    def start_load_kv(self, stream: Any) -> None:
        del self.plan.loads[-1:]
        super().start_load_kv(stream)


class SavesTooEarlyWorker(Worker):
    """I1: pages are stored before the pass computes them."""

    def start_load_kv(self, stream: Any) -> None:
        super().start_load_kv(stream)
        super().wait_for_save(stream)


class SaltBlindScheduler(Scheduler):
    """I1: the salt is not part of the key."""

    def key(self, tracked: Tracked, index: int, tokens: Any = None) -> Key:
        return super().key(
            Tracked((), tracked.prompt, True, 0, tokens=tracked.tokens), index, tokens
        )


class PrefixBlindScheduler(Scheduler):
    """I1: a block's key knows the block's own tokens alone."""

    def key(self, tracked: Tracked, index: int, tokens: Any = None) -> Key:
        tokens = tracked.tokens if tokens is None else tokens
        own = tuple(tokens[index * self.size : (index + 1) * self.size])
        return (*self.identity, tracked.scope, own)


class MediaBlindScheduler(Scheduler):
    """I1: media do not count."""

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int, bool]:
        request.multimodal_hashes = None
        return super().get_num_new_matched_tokens(request, computed)


class UnverifiedPromiseScheduler(Scheduler):
    """I1 through a block that was never stored: promises one block more than there is."""

    def has(self, key: Key) -> bool:
        return key[-2] == 0 or super().has(key)


class IgnoresMissingWorker(Worker):
    """I1: a promised block that is gone is passed over in silence."""

    def start_load_kv(self, stream: Any) -> None:
        with STORE.lock:
            self.plan.loads = [
                load for load in self.plan.loads if (*load[1], self.rank) in STORE.objects
            ]
        super().start_load_kv(stream)


class WholePromptScheduler(Scheduler):
    """I2: leaves no token to compute."""

    def limit(self, tokens: list[int]) -> int:
        return len(tokens) // self.size


class PartialBlockScheduler(Scheduler):
    """I2: promises one token less than whole blocks."""

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int, bool]:
        offered, _ = super().get_num_new_matched_tokens(request, computed)
        return max(offered - 1, 0), False


class UnalignedScheduler(Scheduler):
    """I2: promises behind a local match that ends inside a block."""

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int, bool]:
        offered, _ = super().get_num_new_matched_tokens(request, computed)
        return (self.size if computed % self.size else offered), False


class AsyncZeroScheduler(Scheduler):
    """I2: an asynchronous promise of nothing."""

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int, bool]:
        offered, _ = super().get_num_new_matched_tokens(request, computed)
        return offered, offered == 0


class DoubleReportWorker(PinningWorker):
    """I3: reports an id twice in one answer."""

    def get_finished(
        self, finished_ids: list[int], started_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        saved, loaded = super().get_finished(finished_ids, started_ids)
        return saved * 2, loaded


class StrangeReportWorker(Worker):
    """I3: reports an id that it was not given."""

    def get_finished(
        self, finished_ids: list[int], started_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        return [7], []


class LateWriteWorker(Worker):
    """I4: writes a page again after the step in which it was saved, when it is released."""

    last_page: int | None = None

    def save(self, key: Key, page: int) -> None:
        super().save(key, page)
        self.last_page = page

    def get_finished(
        self, finished_ids: list[int], started_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        if self.last_page is not None:
            self.write(self.last_page, b"late")
        return [], []


class AstrayWriteWorker(Worker):
    """I4: writes just past the end of the pool."""

    def register_kv_caches(self, tensor: Any) -> None:
        super().register_kv_caches(tensor)
        self.pages = tensor.shape[0]

    def wait_for_save(self, stream: Any) -> None:
        super().wait_for_save(stream)
        ctypes.memmove(self.base + self.pages * self.page_bytes, b"astray", 6)


class SlowWorker(Worker):
    """I5: waits for a store that is slow."""

    def wait_for_save(self, stream: Any) -> None:
        threading.Event().wait(STORE.delay_s)
        super().wait_for_save(stream)


class NeverReportsWorker(Worker):
    """I6: with PinningScheduler the pages never come back."""


class LeavesQueueWorker(Worker):
    """I6: bytes stay in the queue after a drain."""

    def drain(self, timeout_s: float) -> bool:
        self.counts["save_queue_bytes"] = 64
        return True


class NeverDrainsWorker(Worker):
    """I6: saves are never done."""

    def drain(self, timeout_s: float) -> bool:
        return False


class ForgetfulScheduler(Scheduler):
    """I6: records of finished requests stay."""

    def request_finished(self, request: Any, block_ids: list[int]) -> bool:
        return False


class BoastingWorker(Worker):
    """I7: counts a load that did not happen."""

    def start_load_kv(self, stream: Any) -> None:
        super().start_load_kv(stream)
        self.counts["blocks_loaded"] += 1


class ForgetsSavesWorker(Worker):
    """I7: drops a save and counts it nowhere."""

    def wait_for_save(self, stream: Any) -> None:
        del self.plan.saves[-1:]
        super().wait_for_save(stream)


class CountsSavesTwiceWorker(Worker):
    """I7: counts a save that succeeded as failed, too."""

    def save(self, key: Key, page: int) -> None:
        super().save(key, page)
        self.counts["saves_failed"] = self.counts.get("saves_failed", 0) + 1


class RaisingScheduler(Scheduler):
    """I8: a query raises."""

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int, bool]:
        raise ConnectionError("the store is down")


class RaisingWorker(Worker):
    """I8: a save raises even the connector's own error."""

    def wait_for_save(self, stream: Any) -> None:
        raise KvConnectorError("the store is full")


class UnpicklableScheduler(Scheduler):
    """I8: metadata that cannot be broadcast."""

    def build_connector_meta(self, output: Any) -> Any:
        super().build_connector_meta(output)
        return threading.Lock()


# Ranks that die, hang or refuse. ----------


class DyingWorker(Worker):
    """Rank 1 kills its own process."""

    def wait_for_save(self, stream: Any) -> None:
        if self.rank == 1:
            os.kill(os.getpid(), 9)
        super().wait_for_save(stream)


class HangingWorker(Worker):
    """Rank 1 never comes back from a callback."""

    def wait_for_save(self, stream: Any) -> None:
        if self.rank == 1:
            threading.Event().wait(3600)
        super().wait_for_save(stream)


class RefusingWorker(Worker):
    """Refuses to start."""

    def __init__(self, llm_args: Any) -> None:
        raise KvConnectorConfigError("MC_BACKEND='tape': unknown; remedy: memory or mooncake")


class NoStoreWorker(Worker):
    """Finds no store at start-up."""

    def __init__(self, llm_args: Any) -> None:
        raise KvConnectorStoreError("no store at 127.0.0.1:1; remedy: start one")


class LostStoreWorker(Worker):
    """Right in all it does, but its store was down for a while."""

    def stats(self) -> dict[str, int | float]:
        return {**super().stats(), "store_calls_refused": 3}


class TellsAndHangsWorker(Worker):
    """Writes its pid into a pipe, then never comes back."""

    def wait_for_save(self, stream: Any) -> None:
        if self.rank == 1:
            with open(os.environ["SIM_TEST_FIFO"], "w") as pipe:
                pipe.write(str(os.getpid()))
            threading.Event().wait(3600)
        super().wait_for_save(stream)


class BlindScheduler(Scheduler):
    """Right in all it does, but never finds anything."""

    def has(self, key: Key) -> bool:
        return False
