"""The figures of a trace: collected, checked, as JSON and as text."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from typing import Any

from mooncake_trtllm.cli import offers
from mooncake_trtllm.cli.exits import BROKEN, GOOD, UNREACHABLE
from mooncake_trtllm.cli.output import human_bytes, rounded
from mooncake_trtllm.cli.ttft_model import speedup
from mooncake_trtllm.errors import KvConnectorStoreError
from mooncake_trtllm.simulator import InstanceConfig, RequestResult
from mooncake_trtllm.simulator.ledger import CallbackTime

__all__ = ["LLAMA", "LLAMA_LAYERS", "LLAMA_TOKEN_BYTES", "TraceReport", "hits_digest", "text"]

LLAMA = "llama_3_1_8b_bf16"
LLAMA_LAYERS = 32
_UNAVAILABLE = (
    "loads_unavailable",
    "stage_short_unavailable",
    "store_calls_abandoned",
    "store_calls_refused",
)
"""Of a worker: calls that the store did not answer, or that were not made because it was down."""
_LOOK_AT_THE_STORE = ". Remedy: look at its log and at the network, and run again"
_REPORT = "; remedy: report it, with the command and what it prints with --json"
_OR_REPORT = "; remedy: what the error says, else report it with what --json prints"
LLAMA_TOKEN_BYTES = 128 << 10
"""Llama-3.1-8B in bfloat16: 32 layers, K and V, 8 heads of 128."""


def hits_digest(hits: list[int]) -> str:
    """SHA-256 of the hit counts in request order, written as compact JSON, such as `[0,32,7]`."""
    return hashlib.sha256(json.dumps(hits, separators=(",", ":")).encode()).hexdigest()


class TraceReport:
    """One instance over one workload."""

    def __init__(
        self,
        config: InstanceConfig,
        backend: str,
        prefill_tok_per_s: float,
        ideal_hits: list[int],
    ) -> None:
        self._config = config
        self._backend = backend
        self._prefill_tok_per_s = prefill_tok_per_s
        self._ideal_hits = ideal_hits
        self._results: list[RequestResult] = []
        self._workers: list[dict[str, int | float]] = []
        self._lookups_failed = 0
        self._load_seconds = 0.0
        self._began = 0.0
        self._seconds = 0.0
        self.failure: str | None = None

    def begin(self) -> None:
        """The instance is up; the clock starts."""
        self._began = time.monotonic()

    def add(self, result: RequestResult) -> None:
        """One request has ended."""
        self._results.append(result)

    def end(self, stats: list[dict[str, Any]]) -> None:
        """All have; `stats` of every rank."""
        self._seconds = time.monotonic() - self._began
        self._workers = [entry["worker"] or {} for entry in stats]
        scheduler = stats[0]["scheduler"] or {}
        self._lookups_failed = int(scheduler.get("blocks_missed_store_failed", 0))
        # Measured by the driver, on the slowest rank: steps without a load cost next to nothing.
        self._load_seconds = max(_waited(entry["ledger"].callbacks) for entry in stats)
        if self.promise == "staged":  # Then the queries are what waits for the store.
            queries = stats[0]["ledger"].callbacks.get("get_num_new_matched_tokens")
            self._load_seconds += queries.seconds if queries else 0.0

    def fail(self, reason: str) -> None:
        """The run ended early; what was collected until then stays."""
        self._seconds = time.monotonic() - self._began if self._began else 0.0
        self.failure = reason

    # Figures ---------------------------------------------------------------------------------

    def total(self, name: str) -> int:
        """A counter of the workers, over all ranks."""
        return int(sum(worker.get(name, 0) for worker in self._workers))

    def _known(self, name: str) -> int | None:
        """The same, where the run came to the point at which they are collected."""
        return self.total(name) if self._workers else None

    @property
    def granularity(self) -> str:
        """What the workers stored as one object."""
        by_layer = any(worker.get("layers_stored_apart", 0) for worker in self._workers)
        return "layer" if by_layer else "block"

    @property
    def promise(self) -> str:
        """When blocks were fetched: `staged`, or `leased`."""
        staged = offers.is_staged(self._config.env) and self.granularity == "block"
        return "staged" if staged else "leased"

    @property
    def hits(self) -> list[int]:
        """Blocks hit, by request."""
        return [result.blocks_hit for result in self._results]

    @property
    def errors(self) -> int:
        """Attempts that failed, and requests that did not end well."""
        failed = sum(len(result.errors) or not result.ok for result in self._results)
        return failed + (self.failure is not None)

    def load_bandwidth(self) -> float | None:
        """Bytes a second of loads, all ranks together; None without a load.

        Staged, time is that of the queries and of the copies, and bytes are also those that were
        in host memory already.
        """
        loaded = self.total("bytes_loaded")
        return loaded / self._load_seconds if loaded and self._load_seconds else None

    def save_bandwidth(self) -> float | None:
        """Bytes a second of background saves, all ranks together; None without a save."""
        saved = self.total("bytes_saved")
        seconds = max((float(worker.get("save_seconds", 0)) for worker in self._workers), default=0)
        return saved / seconds if saved and seconds else None

    def speedup(self, token_bytes: int) -> float | None:
        """Modeled time to first token without reuse over that with it."""
        size = self._config.geometry.tokens_per_block
        return speedup(
            prompt_tokens=sum(result.prompt_tokens for result in self._results),
            computed_tokens=sum(result.tokens_computed for result in self._results),
            loaded_bytes=sum(self.hits) * size * token_bytes,
            prefill_tok_per_s=self._prefill_tok_per_s,
            load_bytes_per_s=self.load_bandwidth(),
        )

    def verdict(
        self, *, exact: bool, reach: Callable[[], None] | None = None
    ) -> tuple[int, list[str]]:
        """The exit code of the run and what is wrong with it.

        `exact`: nothing but the connector can cost a hit. `reach` connects to the store once more
        where blocks could not be loaded, or were not stored: a store that is gone is the reason,
        and no fault of the connector.
        """
        if self.failure is None:
            self.failure = self._store_failure(reach)
            if self.failure is not None:
                return UNREACHABLE, [self.failure]
        faults = self._faults(exact=exact)
        return BROKEN if faults else GOOD, faults

    def _store_failure(self, reach: Callable[[], None] | None) -> str | None:
        failed = self._lookups_failed + sum(self.total(name) for name in _UNAVAILABLE)
        reason = ""
        # Staged, blocks that were looked up and then not there cost hits alone, and saves that a
        # store which is gone refuses cost not even those while this process has the blocks.
        lost = self.errors or self.total("stage_short_missing") or self._saves_lost
        if reach is not None and (failed or lost):
            try:
                reach()
            except KvConnectorStoreError as error:
                reason = f": {error}"
        if not failed and not reason:
            return None
        return (
            f"the store could not be reached during the run: {self._lookups_failed} blocks were "
            f"looked up, {self.total('loads_unavailable')} loaded and "
            f"{self.total('saves_failed')} saved in vain, "
            f"{self.total('saves_dropped')} saves were dropped, and "
            f"{self.total('stage_short_unavailable')} prefixes fetched in vain"
            f"{reason or _LOOK_AT_THE_STORE}"
        )

    @property
    def _saves_lost(self) -> int:
        return self.total("saves_dropped") + self.total("saves_failed")

    def _faults(self, *, exact: bool) -> list[str]:
        hit, ideal = sum(self.hits), sum(self._ideal_hits)
        verified = sum(result.blocks_verified for result in self._results)
        if self.failure is not None:
            return [f"{self.failure}{_REPORT}"]
        faults = []
        if self.errors:
            text = next((e for result in self._results for e in result.errors), "")
            faults.append(f"{self.errors} errors; first: {text}{_OR_REPORT}")
        if verified != hit:
            faults.append(f"{verified} of {hit} blocks hit were verified{_REPORT}")
        if hit > ideal:
            faults.append(f"{hit} blocks hit, an exact unlimited cache hits {ideal}{_REPORT}")
        elif exact and hit != ideal:
            faults.append(
                f"{hit} blocks hit, an exact unlimited cache hits {ideal}; {self._saves_lost} "
                f"saves were dropped or failed; remedy: {self._how_to_hit_more()}"
            )
        return faults

    def _how_to_hit_more(self) -> str:
        if self.total("stage_short_no_room"):
            return "raise MC_STAGING_BYTES: fetched blocks found no room in host memory"
        if self.total("saves_dropped") and not self.total("saves_failed"):
            return "raise MC_SAVE_QUEUE_BYTES and MC_STAGING_BYTES: saves found no room in them"
        if self._backend == "memory":
            return "report it, since the memory back end had room for all"
        room = {
            "file": "a larger --segment-bytes, or MC_FILE_MAX_BYTES where MC_FILE_PATH is set",
            "mooncake": "a larger --segment-bytes, or more storage at the store that is named",
        }[self._backend]
        return f"{room}; report it if there was room for all"

    def row(self, *, with_curve: bool) -> dict[str, Any]:
        """`trace/1`."""
        config, geometry = self._config, self._config.geometry
        matchable = sum(result.blocks_matchable for result in self._results)
        hits = self.hits
        load, save = self.load_bandwidth(), self.save_bandwidth()
        row: dict[str, Any] = {
            "schema": "trace/1",
            "backend": self._backend,
            "promise": self.promise,
            "granularity": self.granularity,
            "tp": config.tp,
            "ranks": config.ranks,
            "tokens_per_block": geometry.tokens_per_block,
            "bytes_per_block": geometry.page_bytes(config.tp),
            "requests": len(self._results),
            "errors": self.errors,
            "blocks_matchable": matchable,
            "blocks_hit": sum(hits),
            "blocks_hit_ideal": sum(self._ideal_hits),
            "block_hit_ratio": rounded(sum(hits) / matchable if matchable else None),
            "first_request_blocks_hit": hits[0] if hits else None,
            "blocks_verified": sum(result.blocks_verified for result in self._results),
            "blocks_rejected": {
                reason: self._known(f"rejected_{reason}")
                for reason in ("checksum", "layout", "header", "size")
            },
            "saves_dropped": self._known("saves_dropped"),
            "saves_failed": self._known("saves_failed"),
            "bytes_loaded": self._known("bytes_loaded"),
            "bytes_staged": self._known("bytes_staged"),
            "bytes_saved": self._known("bytes_saved"),
            "load_gb_per_s": rounded(load / 1e9 if load else None),
            "save_gb_per_s": rounded(save / 1e9 if save else None),
            "prefill_tok_per_s": self._prefill_tok_per_s,
            "ttft_speedup_modeled": rounded(self.speedup(geometry.token_bytes_all_layers())),
            f"ttft_speedup_modeled_{LLAMA}": rounded(self.speedup(LLAMA_TOKEN_BYTES)),
            "hits_digest": hits_digest(hits),
            "seconds": rounded(self._seconds, 3),
        }
        if self.failure is not None:
            row["failure"] = self.failure
        if with_curve:
            row["curve"] = [
                {"request": index, "matchable": result.blocks_matchable, "hit": result.blocks_hit}
                for index, result in enumerate(self._results)
            ]
        return row


def _waited(callbacks: dict[str, CallbackTime]) -> float:
    """Seconds that the passes of a rank waited for loads."""
    names = ("start_load_kv", "wait_for_layer_load")
    return sum(callbacks[name].seconds for name in names if name in callbacks)


def text(report: TraceReport) -> str:
    """For people."""
    row = report.row(with_curve=False)
    block = human_bytes(row["bytes_per_block"])
    token = human_bytes(row["bytes_per_block"] * row["tp"] / row["tokens_per_block"])
    lines = [
        f"{row['requests']} requests, {row['backend']} store, tp {row['tp']} ({row['ranks']}), "
        f"{row['tokens_per_block']} tokens and {block} a block and rank",
        f"  blocks reused    {row['blocks_hit']} of {row['blocks_matchable']} "
        f"({_percent(row['block_hit_ratio'])}); an exact unlimited cache: "
        f"{row['blocks_hit_ideal']}",
        f"  verified         {row['blocks_verified']}, every byte against the oracle",
        f"  first request    {row['first_request_blocks_hit']} blocks",
        f"  errors           {row['errors']}; {_lost(row)}",
        f"  moved            {_moved(row)}",
        f"  time to first token, modeled at {row['prefill_tok_per_s']:g} prefill tokens/s: "
        f"{_times(row['ttft_speedup_modeled'])} for this geometry ({token} a token), "
        f"{_times(row[f'ttft_speedup_modeled_{LLAMA}'])} for Llama-3.1-8B bf16 "
        "(128.0 KiB a token)",
        f"  hits digest      {row['hits_digest']}",
        f"  took             {row['seconds']} s",
    ]
    return "\n".join(lines) + "\n"


def _percent(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{100 * ratio:.2f} %"


def _rate(gb_per_s: float | None) -> str:
    return "" if gb_per_s is None else f" at {gb_per_s:.2f} GB/s"


def _lost(row: dict[str, Any]) -> str:
    if row["saves_dropped"] is None:
        return "rejected blocks, saves dropped or failed: not known"
    return (
        f"rejected blocks {sum(row['blocks_rejected'].values())}; saves dropped "
        f"{row['saves_dropped']}; saves failed {row['saves_failed']}"
    )


def _moved(row: dict[str, Any]) -> str:
    if row["bytes_loaded"] is None:
        return "not known"
    return (
        f"{human_bytes(row['bytes_loaded'])} loaded{_rate(row['load_gb_per_s'])}{_fetched(row)}, "
        f"{human_bytes(row['bytes_saved'])} saved{_rate(row['save_gb_per_s'])}"
    )


def _fetched(row: dict[str, Any]) -> str:
    if row["promise"] != "staged":
        return ""
    return f" ({human_bytes(row['bytes_staged'])} of it fetched, the rest was in host memory)"


def _times(ratio: float | None) -> str:
    if not ratio:
        return "not known"
    if ratio < 1:
        return f"{1 / ratio:.2f} times longer (recomputing is faster)"
    return f"{ratio:.2f} times shorter"
