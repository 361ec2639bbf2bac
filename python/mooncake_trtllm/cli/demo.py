"""`demo`: KV computed by one instance is reused, bit-exact, by others through a real store.

A prefill (CTX) instance computes prompts and saves their blocks; a decode (GEN) instance and a
restarted one reuse them; another salt must not; an altered block must be noticed and healed; a
store without storage must cost nothing but hits. Every rank is a process of its own, and so is the
store's storage. What is printed was measured in this run, every reused byte compared with the
oracle.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mooncake_trtllm.cli import offers, run_settings, stores
from mooncake_trtllm.cli.demo_report import Step, text
from mooncake_trtllm.cli.demo_steps import PROMPT_TOKENS, Scene
from mooncake_trtllm.cli.exits import BROKEN, GOOD, UsageError, exit_code
from mooncake_trtllm.cli.output import add_output_options, print_json
from mooncake_trtllm.simulator import Geometry, InstanceConfig, ModelFolder, SimulationError

__all__ = ["add_to", "run"]

_GEOMETRY = Geometry(layers=8, kv_heads=8, head_dim=32, tokens_per_block=32)
_SEGMENT_BYTES = 512 << 20
_POOL_BLOCKS = 128
_DEADLINE_MS = 4000
"""Less than callbacks may take."""


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb to the command line."""
    parser = verbs.add_parser(
        "demo",
        help="show the main job on a real store, step by step",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    stores.add_options(parser, default="mooncake")
    stores.add_granularity(parser)
    parser.add_argument("--tp", type=int, default=2, metavar="N", help="ranks (default: 2)")
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the verb."""
    if options.tp < 1 or _GEOMETRY.kv_heads % options.tp:
        raise UsageError(
            f"--tp {options.tp}: must divide the {_GEOMETRY.kv_heads} KV heads of the demo's "
            "model; remedy: 1, 2, 4 or 8"
        )
    options.backend = stores.chosen_backend(options.backend, "mooncake")
    began = time.monotonic()
    steps: list[Step] = []
    failure: str | None = None
    with _scene(options) as scene:
        report: dict[str, Any] = {
            "schema": "demo/1",
            "ok": False,
            "backend": options.backend,
            "tp": options.tp,
            "store": scene.describe_store(),
        }
        try:
            for step in scene.steps():
                steps.append(step)
                if not options.json:
                    sys.stdout.write(text([step], heading=len(steps) == 1))
                    sys.stdout.flush()
        except SimulationError as error:
            if exit_code(error) != BROKEN:
                raise
            failure = str(error)
        report["steps_not_run"] = scene.steps_not_run()
    broken = [f"{step.name}: {fault}" for step in steps for fault in step.faults]
    broken += [failure] if failure else []
    report["ok"] = not broken
    report["steps"] = [step.row() for step in steps]
    report["seconds"] = round(time.monotonic() - began, 3)
    if failure:
        report["failure"] = failure
    for fault in broken:
        print(f"mooncake-trtllm: broken: {fault}", file=sys.stderr)
    if options.json:
        print_json(report)
    else:
        _verdict(report, steps)
    return BROKEN if broken else GOOD


@contextlib.contextmanager
def _scene(options: argparse.Namespace) -> Iterator[Scene]:
    """Store first, instances inside it: clients end before the store does."""
    processes = options.backend != "memory"
    with (
        tempfile.TemporaryDirectory(prefix="mooncake-trtllm-") as folder,
        stores.open_store(options.backend, _SEGMENT_BYTES, options.segment_bytes) as store,
    ):
        env = _environment(options, store)
        stores.tell_overrides("demo", env)
        # A model of its own for every run: on a shared store the first step is cold all the same.
        seed = stores.run_seed(folder)
        config = InstanceConfig(
            ModelFolder.create(Path(folder) / "model", _GEOMETRY, weights_seed=seed),
            _GEOMETRY,
            tp=options.tp,
            ranks="processes" if processes else "threads",
            env=env,
            quiet=not options.verbose,
            pool_blocks=_POOL_BLOCKS,
            block_reuse=False,
        )
        scene = Scene(config, store, staged=offers.is_staged(config.env))
        try:
            yield scene
            scene.close()
        except BaseException:
            scene.kill()
            raise


def _environment(options: argparse.Namespace, store: stores.RunStore) -> dict[str, str]:
    """Of its ranks. Raises UsageError where the demo cannot show its job with the user's."""
    env = {
        **store.env,
        **run_settings.load_all(_DEADLINE_MS),
        "MC_MEMORY_BYTES": str(_SEGMENT_BYTES),
        **offers.granularity_settings(stores.granularity_of(options)),
    }
    run_settings.check_staging("the demo", env, _GEOMETRY, options.tp, PROMPT_TOKENS)
    run_settings.check_stage_address(env, options.tp)
    return {**env, **run_settings.without_stage_port(env)}


def _verdict(report: dict[str, Any], steps: list[Step]) -> None:
    moved_in = sum(step.bytes_loaded for step in steps)
    moved_out = sum(step.bytes_saved for step in steps)
    verified = sum(step.blocks_verified + step.verified_after_healing for step in steps)
    for name, reason in report["steps_not_run"].items():
        print(f"{name}: not run, {reason}")
    print(
        f"\n{'OK' if report['ok'] else 'BROKEN'}: {verified} reused blocks, every byte of them "
        f"verified; {moved_out} bytes saved, {moved_in} bytes loaded; {report['seconds']:.1f} s"
    )
