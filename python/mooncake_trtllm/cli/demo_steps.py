"""The steps of the demo, played on instances of one model over one store."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from mooncake_trtllm import child_guard
from mooncake_trtllm.cli.demo_report import Step
from mooncake_trtllm.cli.private_folder import PrivateFolder
from mooncake_trtllm.cli.stores import RunStore
from mooncake_trtllm.local_store import LocalStore
from mooncake_trtllm.mooncake_wheel import wheel_version
from mooncake_trtllm.simulator import (
    Instance,
    InstanceConfig,
    Prompt,
    RequestResult,
    SimulationError,
)
from mooncake_trtllm.simulator.mixing import token_stream

__all__ = ["PROMPT_TOKENS", "Scene"]

_PROMPTS = 3
PROMPT_TOKENS = 1024 + 7
_VOCABULARY = 32000
_DRAIN_S = 30.0
_TAMPER_TIMEOUT_S = 60.0
_PROMISE_TIMEOUT_S = 30.0
_SHARD = re.compile(r"/r\d+(/\d+)?$")
"""A rank's shard of a block, whole or one layer of it."""


class Scene:
    """The instances of one demo; they are clients of the store, so they end before it."""

    def __init__(self, config: InstanceConfig, store: RunStore, *, staged: bool) -> None:
        self._config = config
        self._store = store
        self._staged = staged
        self._prompts = [
            token_stream(seed, PROMPT_TOKENS, _VOCABULARY) for seed in range(1, _PROMPTS + 1)
        ]
        self._instances: dict[str, Instance] = {}

    # Cast ------------------------------------------------------------------------------------

    def describe_store(self) -> dict[str, Any]:
        """Version and processes; pids are 0 where the store is not ours."""
        private = self._store.private
        return {
            "version": wheel_version() if self._store.backend == "mooncake" else None,
            "master_pid": private.master_pid if private else 0,
            "storage_pid": private.storage_pid if private else 0,
        }

    def steps_not_run(self) -> dict[str, str]:
        """Names and reasons."""
        if self._victim is not None:
            return {}
        reason = (
            "the memory store has no process of its own"
            if self._store.backend == "memory"
            else "it would damage a store that this run does not own"
        )
        return {"tampered": reason, "store_gone": reason}

    def close(self) -> None:
        """Ends all instances."""
        while self._instances:
            _, instance = self._instances.popitem()
            instance.close()

    def kill(self) -> None:
        """The same without farewell."""
        while self._instances:
            _, instance = self._instances.popitem()
            instance.kill()

    def _instance(self, name: str, *, load_gate: str | None = None) -> Instance:
        if name not in self._instances:
            instance = Instance(replace(self._config, load_gate=load_gate))
            self._instances[name] = instance
            instance.start()
        return self._instances[name]

    # Play ------------------------------------------------------------------------------------

    def steps(self) -> Iterator[Step]:
        """Plays one step after the other and yields what each measured."""
        cold, _ = self._serve("cold", "ctx")
        cold.expect("blocks_hit", cold.blocks_hit, 0)
        cold.expect("bytes_saved", cold.bytes_saved, cold.blocks_matchable * self._block_bytes)
        yield cold
        victim = self._victim
        keys = victim.keys() if victim else []
        yield self._full("warm", "gen")
        salted, _ = self._serve("other_salt", "gen", salt="another tenant")
        salted.expect("blocks_hit", salted.blocks_hit, 0)
        yield salted
        self._instances.pop("gen").close()
        yield self._full("restart", "restarted")
        if victim is not None:
            yield self._tampered(victim, keys)
            yield self._store_gone(victim)

    @property
    def _victim(self) -> LocalStore | PrivateFolder | None:
        """What of the store may be damaged."""
        return self._store.private or self._store.folder

    @property
    def _block_bytes(self) -> int:
        return self._config.geometry.block_bytes()

    def _full(self, name: str, instance: str) -> Step:
        step, _ = self._serve(name, instance)
        step.expect("blocks_hit", step.blocks_hit, step.blocks_matchable)
        step.expect("bytes_loaded", step.bytes_loaded, step.blocks_hit * self._block_bytes)
        return step

    def _tampered(self, store: LocalStore | PrivateFolder, keys: list[str]) -> Step:
        """One shard of a prompt's block is altered behind the connector's back.

        Where promises are staged, instances keep in memory what they have verified, so the store
        is read by instances that have seen nothing yet.
        """
        shards = [key for key in keys if _SHARD.search(key)]
        if not shards:
            raise SimulationError(f"no shard among the {len(keys)} keys of the store")
        victim = shards[len(shards) // 2]
        if isinstance(store, PrivateFolder):
            store.alter(victim)
        else:
            self._alter(store, victim)
        failures = 0 if self._staged else 1
        reader, second_reader = ("reader", "healed") if self._staged else ("restarted",) * 2
        step, results = self._serve("tampered", reader, retries=failures, errors_expected=failures)
        step.expect("blocks_rejected", step.blocks_rejected, 1)
        step.expect("requests retried", sum(result.retries for result in results), failures)
        short = [result for result in results if result.blocks_hit < result.blocks_matchable]
        step.expect("requests that computed blocks", len(short), 1)
        recomputed = sum(result.blocks_matchable - result.blocks_hit for result in short)
        healed = self._full("tampered", second_reader)
        step.faults += [f"afterwards {fault}" for fault in healed.faults]
        step.bytes_loaded += healed.bytes_loaded
        step.bytes_saved += healed.bytes_saved
        step.verified_after_healing = healed.blocks_verified
        how = "not promised" if self._staged else "noticed by a load that failed closed"
        step.more = {
            "tampered_key": victim,
            "retries": sum(result.retries for result in results),
            "blocks_recomputed": recomputed,
            "error": next((error for result in results for error in result.errors), ""),
            "healed": {
                "blocks_matchable": healed.blocks_matchable,
                "blocks_hit": healed.blocks_hit,
                "blocks_verified": healed.blocks_verified,
            },
            "note": f"one bit of one stored shard flipped: {how}, {recomputed} blocks recomputed, "
            f"then {healed.blocks_hit} of {healed.blocks_matchable} reused again",
        }
        return step

    def _store_gone(self, store: LocalStore | PrivateFolder) -> Step:
        """Storage is killed; once the store has expired it, everything is recomputed."""
        kept: RequestResult | None = None
        witness = "restarted"
        if self._staged:
            witness = "witness"  # has nothing in memory
            self._instance(witness)
            kept, (waited, how) = self._lose_after_promise(store)
        else:
            waited, how = self._take_away(store)
        step, results = self._serve("store_gone", witness)
        step.expect("blocks_hit", step.blocks_hit, 0)
        step.expect("requests done", sum(result.ok for result in results), len(results))
        step.more = {
            "storage_expired_after_s": round(waited, 3),
            "note": f"{how}: all recomputed",
        }
        if kept is not None:
            step.expect("errors after the promise", kept.errors, [])
            step.expect("blocks hit as promised", kept.blocks_hit, kept.blocks_matchable)
            step.expect("blocks verified as promised", kept.blocks_verified, kept.blocks_hit)
            step.more["promise_kept"] = {
                "blocks_promised": kept.blocks_hit,
                "blocks_verified": kept.blocks_verified,
            }
            step.more["note"] = (
                f"{how} between a promise and its load: {kept.blocks_verified} of "
                f"{kept.blocks_matchable} blocks loaded all the same; later requests recomputed"
            )
        return step

    def _take_away(self, store: LocalStore | PrivateFolder) -> tuple[float, str]:
        """Seconds until the store said so, and what was done."""
        if isinstance(store, PrivateFolder):
            store.remove()
            return 0.0, "folder removed"
        waited = store.kill_storage()
        return waited, f"storage killed, expired by the store after {waited:.1f} s"

    def _lose_after_promise(
        self, store: LocalStore | PrivateFolder
    ) -> tuple[RequestResult, tuple[float, str]]:
        """A request stops between its promise and its load; meanwhile the store goes."""
        with tempfile.TemporaryDirectory(prefix="mooncake-trtllm-") as folder:
            gate = Path(folder) / "gate"
            gate.touch()
            reached = gate.with_name("gate.reached")
            instance = self._instance("holder", load_gate=str(gate))

            def take_away_meanwhile() -> tuple[float, str]:
                give_up = time.monotonic() + _PROMISE_TIMEOUT_S
                try:
                    while not reached.exists() and time.monotonic() < give_up:
                        threading.Event().wait(0.01)
                    return self._take_away(store)
                finally:
                    gate.unlink()

            with ThreadPoolExecutor(1) as executor:
                taken = executor.submit(take_away_meanwhile)
                result = instance.serve(Prompt(self._prompts[0]))
                lost = taken.result()
            if not reached.exists():
                raise SimulationError("nothing was promised, so that no load could be held up")
            return result, lost

    def _serve(
        self,
        name: str,
        instance_name: str,
        *,
        salt: str | None = None,
        retries: int = 0,
        errors_expected: int = 0,
    ) -> tuple[Step, list[RequestResult]]:
        """All prompts, one after the other, and their saves."""
        instance = self._instance(instance_name)
        step = Step(name, instance_name, instance.pids)
        before = instance.stats()
        began = time.monotonic()
        results = [
            instance.serve(Prompt(tokens, cache_salt=salt, retries=retries), drain_s=_DRAIN_S)
            for tokens in self._prompts
        ]
        step.seconds = time.monotonic() - began
        after = instance.stats()
        step.blocks_matchable = sum(result.blocks_matchable for result in results)
        step.blocks_hit = sum(result.blocks_hit for result in results)
        step.blocks_verified = sum(result.blocks_verified for result in results)
        step.errors = sum(len(result.errors) for result in results)
        step.bytes_loaded = _grown(before, after, "bytes_loaded")
        step.bytes_saved = _grown(before, after, "bytes_saved")
        step.blocks_rejected = sum(
            _grown(before, after, f"rejected_{reason}")
            for reason in ("checksum", "layout", "header", "size")
        )
        step.expect("errors", step.errors, errors_expected)
        step.expect("blocks_verified", step.blocks_verified, step.blocks_hit)
        return step, results

    def _alter(self, store: LocalStore, key: str) -> None:
        """In a process of its own, with a raw client of the store."""
        environment = {
            **os.environ,
            **self._config.env,
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        }
        with tempfile.TemporaryFile() as output:
            process = child_guard.spawn(
                [sys.executable, "-m", "mooncake_trtllm.cli.tamper", store.master_address, key],
                env=environment,
                output=output,
            )
            try:
                status: int | None = process.wait(_TAMPER_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                child_guard.stop(process, grace_s=0.5)
            if status != 0:
                said = child_guard.said(output)
                raise SimulationError(f"could not alter {key} in the store: {said or status}")


def _grown(before: list[dict[str, Any]], after: list[dict[str, Any]], name: str) -> int:
    """By how much a counter grew, over all ranks."""
    return sum(
        int(now["worker"][name]) - int(then["worker"][name])
        for then, now in zip(before, after, strict=True)
    )
