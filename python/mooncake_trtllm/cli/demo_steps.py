"""The steps of the demo, played on instances of one model over one store."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
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

__all__ = ["Scene"]

_PROMPTS = 3
_PROMPT_TOKENS = 1024 + 7
_VOCABULARY = 32000
_DRAIN_S = 30.0
_TAMPER_TIMEOUT_S = 60.0
_SHARD = re.compile(r"/r\d+(/\d+)?$")
"""A rank's shard of a block, whole or one layer of it."""


class Scene:
    """The instances of one demo; they are clients of the store, so they end before it."""

    def __init__(self, config: InstanceConfig, store: RunStore) -> None:
        self._config = config
        self._store = store
        self._prompts = [
            token_stream(seed, _PROMPT_TOKENS, _VOCABULARY) for seed in range(1, _PROMPTS + 1)
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

    def _instance(self, name: str) -> Instance:
        if name not in self._instances:
            instance = Instance(replace(self._config))
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
        """One shard of a prompt's block is altered behind the connector's back."""
        shards = [key for key in keys if _SHARD.search(key)]
        if not shards:
            raise SimulationError(f"no shard among the {len(keys)} keys of the store")
        victim = shards[len(shards) // 2]
        if isinstance(store, PrivateFolder):
            store.alter(victim)
        else:
            self._alter(store, victim)
        step, results = self._serve("tampered", "restarted", retries=1, errors_expected=1)
        step.expect("blocks_rejected", step.blocks_rejected, 1)
        step.expect("requests retried", sum(result.retries for result in results), 1)
        retried = [result for result in results if result.retries]
        recomputed = sum(result.blocks_matchable - result.blocks_hit for result in retried)
        if retried and not recomputed:
            step.faults.append("the retry recomputed nothing")
        untouched = [result for result in results if not result.retries]
        step.expect(
            "blocks hit by the other requests",
            sum(result.blocks_hit for result in untouched),
            sum(result.blocks_matchable for result in untouched),
        )
        healed = self._full("tampered", "restarted")
        step.faults += [f"afterwards {fault}" for fault in healed.faults]
        step.bytes_loaded += healed.bytes_loaded
        step.bytes_saved += healed.bytes_saved
        step.verified_after_healing = healed.blocks_verified
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
            "note": f"one bit of one stored shard flipped: noticed, {recomputed} blocks recomputed "
            f"by the retry, then {healed.blocks_hit} of {healed.blocks_matchable} reused again",
        }
        return step

    def _store_gone(self, store: LocalStore | PrivateFolder) -> Step:
        """Storage is killed; once the store has expired it, everything is recomputed."""
        if isinstance(store, PrivateFolder):
            store.remove()
            waited, how = 0.0, "folder removed"
        else:
            waited = store.kill_storage()
            how = f"storage killed, expired by the store after {waited:.1f} s"
        step, results = self._serve("store_gone", "restarted")
        step.expect("blocks_hit", step.blocks_hit, 0)
        step.expect("requests done", sum(result.ok for result in results), len(results))
        step.more = {
            "storage_expired_after_s": round(waited, 3),
            "note": f"{how}: all recomputed",
        }
        return step

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
