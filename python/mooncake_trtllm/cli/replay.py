"""Plays a workload on instances over a store: what `trace`, `matrix` and `timeline` share.

So that hit counts are a property of connector and workload alone, one request runs at a time, its
saves are drained before the next one, nothing is reused locally, everything that the store has is
loaded, and prompts alone are saved (each request ends with its first token).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mooncake_trtllm.cli import offers, run_settings, stores
from mooncake_trtllm.cli.exits import BROKEN, UsageError, exit_code
from mooncake_trtllm.cli.trace_report import TraceReport
from mooncake_trtllm.simulator import (
    Geometry,
    Instance,
    InstanceConfig,
    ModelFolder,
    Prompt,
    SimulationError,
)
from mooncake_trtllm.simulator.workloads import IdealCache, Workload

__all__ = ["PREFILL_TOK_PER_S", "Replay", "geometry_for"]

PREFILL_TOK_PER_S = 3000.0
"""Default of `--prefill-tok-per-s`, the one knob of every modeled figure."""

_DRAIN_S = 60.0
_CALLBACK_BOUND_S = 70.0
_DEADLINE_MS = 60_000


def geometry_for(workload: Workload, tokens_per_block: int | None, tp: int) -> Geometry:
    """64 KiB a block of the agentic workload, 16 KiB a block of 512 tokens, over all ranks."""
    heads, head_dim, layers = (4, 16, 8) if workload.tokens_per_block == 32 else (2, 2, 2)
    if heads % tp:
        raise UsageError(
            f"--tp {tp}: does not divide the {heads} KV heads of this workload's model; "
            f"remedy: a divisor of {heads}"
        )
    return Geometry(
        layers=layers,
        kv_heads=heads,
        head_dim=head_dim,
        tokens_per_block=tokens_per_block or workload.tokens_per_block,
    )


@dataclass
class Replay:
    """One model on one kind of store; each `run` is a fresh instance on what earlier ones left."""

    workload: Workload
    geometry: Geometry
    tp: int
    ranks: str
    """`threads` or `processes`."""
    granularity: str
    prefill_tok_per_s: float
    verbose: bool = False
    """Ranks that are processes say on standard error what they log."""

    def __post_init__(self) -> None:
        """The exact cache lives as long as the model's blocks in the store."""
        self._ideal = IdealCache(self.geometry.tokens_per_block)
        self._first_hits = [self._ideal.serve(tokens) for tokens in self.workload]
        self._runs = 0

    @property
    def bytes_needed(self) -> int:
        """Of the store, for all distinct blocks."""
        objects = offers.objects_per_block(self.granularity, self.tp, self.geometry.layers)
        return stores.segment_bytes(self._ideal.blocks, self.geometry.block_bytes(), objects)

    def config(self, store: stores.RunStore, folder: Path, seed: int) -> InstanceConfig:
        """An instance of the model `seed` in `folder`, whose blocks no other model shares."""
        longest = self.workload.longest + 1
        size = self.geometry.tokens_per_block
        env = {**store.env, **run_settings.load_all(_DEADLINE_MS), **self._own_settings()}
        run_settings.check_stage_address(env, self.tp)
        return InstanceConfig(
            ModelFolder.create(folder / "model", self.geometry, weights_seed=seed),
            self.geometry,
            tp=self.tp,
            ranks=self.ranks,
            quiet=not self.verbose,
            env=env,
            pool_blocks=-(-longest // size) + 1,
            max_num_tokens=max(longest, size),
            block_reuse=False,
            callback_bound_s=_CALLBACK_BOUND_S,
            hang_timeout_s=2 * _CALLBACK_BOUND_S,
        )

    def run(
        self, config: InstanceConfig, backend: str, progress: Callable[[int], None]
    ) -> TraceReport:
        """One instance, from cold start to close, over the whole workload."""
        hits = self._first_hits if self._runs == 0 else self._repeated_hits()
        self._runs += 1
        report = TraceReport(config, backend, self.prefill_tok_per_s, hits)
        try:
            with Instance(config) as instance:
                report.begin()
                for index, tokens in enumerate(self.workload):
                    report.add(instance.serve(Prompt(tokens), drain_s=_DRAIN_S))
                    progress(index + 1)
                report.end(instance.stats())
        except SimulationError as error:
            if exit_code(error) != BROKEN:
                raise
            report.fail(str(error))
        return report

    def _repeated_hits(self) -> list[int]:
        return [self._ideal.serve(tokens) for tokens in self.workload]

    def _own_settings(self) -> Mapping[str, str]:
        memory = {"MC_MEMORY_BYTES": str(self.bytes_needed)}
        return {**memory, **offers.granularity_settings(self.granularity)}
