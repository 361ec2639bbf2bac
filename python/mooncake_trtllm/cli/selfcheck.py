"""`selfcheck`: is this installation whole, and does it move KV right?

Reports the environment, then lets one instance compute and store, another one reuse: every byte is
compared with the oracle, another salt must not hit, another layout must be refused.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from mooncake_trtllm.cli import environment, offers, run_settings, stores
from mooncake_trtllm.cli.checks import Check, Checks
from mooncake_trtllm.cli.exits import UsageError, exit_code
from mooncake_trtllm.cli.output import add_output_options, print_json
from mooncake_trtllm.errors import KvConnectorConfigError, KvConnectorError
from mooncake_trtllm.local_store import LocalStoreError
from mooncake_trtllm.simulator import (
    Geometry,
    Instance,
    InstanceConfig,
    ModelFolder,
    Prompt,
    SimulationError,
)
from mooncake_trtllm.simulator.mixing import token_stream

__all__ = ["add_to", "run"]

_DEFAULT = "file"
"""As engines do without any setting."""
_GEOMETRY = Geometry(layers=4, kv_heads=4, head_dim=16, tokens_per_block=16)
_PROMPT = token_stream(1, 16 * 20 + 5, 32000)
_MATCHABLE = 20
_SEGMENT_BYTES = 256 << 20
_DRAIN_S = 30.0
_DEADLINE_MS = 4000
"""Less than callbacks may take."""


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb to the command line."""
    parser = verbs.add_parser(
        "selfcheck",
        help="check this installation, then move blocks from instance to instance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    stores.add_options(
        parser,
        default=_DEFAULT,
        what="memory: inside this process; file: the folder that engines of this user share, which "
        "MC_FILE_PATH may name; mooncake: the store that MOONCAKE_MASTER or MOONCAKE_CONFIG_PATH "
        "names, else a private one on loopback, started and stopped by this run",
    )
    stores.add_granularity(parser)
    parser.add_argument("--tp", type=int, default=2, choices=(1, 2, 4), help="ranks (default: 2)")
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the verb."""
    checks = Checks()
    try:
        backend = stores.chosen_backend(options.backend, _DEFAULT)
    except (KvConnectorConfigError, ImportError):  # which environment.report() finds, too
        backend = options.backend or _DEFAULT
    environment.report(checks, backend)
    if checks.ok:
        name = "store"
        try:
            with (
                tempfile.TemporaryDirectory(prefix="mooncake-trtllm-") as folder,
                stores.open_store(
                    backend, _SEGMENT_BYTES, options.segment_bytes, engines_folder=True
                ) as store,
            ):
                env = _environment(options, store)
                stores.tell_overrides("selfcheck", env)
                stores.reach(store)
                checks.add(Check("store", True, _store_text(store)))
                name = "run"
                _move_blocks(checks, options.tp, env, Path(folder))
        except UsageError as error:
            checks.add(Check.of_error("settings", error))
        except (SimulationError, LocalStoreError, KvConnectorError) as error:
            checks.add(Check.of_error(name, error))
    if options.json:
        print_json(checks.content())
    else:
        sys.stdout.write(checks.text())
    return checks.exit_code


def _environment(options: argparse.Namespace, store: stores.RunStore) -> dict[str, str]:
    """Of its ranks. Raises UsageError where blocks cannot move with the user's settings."""
    env = {
        **store.env,
        **run_settings.load_all(_DEADLINE_MS),
        "MC_MEMORY_BYTES": str(_SEGMENT_BYTES),
        **offers.granularity_settings(stores.granularity_of(options)),
    }
    run_settings.check_staging("selfcheck", env, _GEOMETRY, options.tp, len(_PROMPT))
    # With other ranks than asked for, too: they must not hit.
    run_settings.check_stage_address(env, max(options.tp, 2))
    return env


def _store_text(store: stores.RunStore) -> str:
    if store.backend == "memory":
        return "memory, inside this process"
    if store.backend == "file":
        return (
            f"file, in the folder {stores.where_engines_store()}, which engines of this user share"
        )
    if store.private is None:
        return f"mooncake, the store of {stores.users_store()}, took and returned an object"
    return (
        f"mooncake {store.private.version}, private on {store.private.master_address} "
        f"(master {store.private.master_pid}, storage {store.private.storage_pid})"
    )


def _move_blocks(checks: Checks, tp: int, env: Mapping[str, str], folder: Path) -> None:
    seed = stores.run_seed(folder)

    def config(
        geometry: Geometry, name: str, pool: Geometry | None = None, ranks: int = tp
    ) -> InstanceConfig:
        return InstanceConfig(
            ModelFolder.create(folder / name, geometry, weights_seed=seed),
            geometry,
            tp=ranks,
            env=env,
            pool_blocks=64,
            block_reuse=False,
            pool_geometry=pool,
        )

    base = config(_GEOMETRY, "model")
    with Instance(base) as ctx:
        cold = ctx.serve(Prompt(_PROMPT), drain_s=_DRAIN_S)
    checks.expect("cold", cold.blocks_hit, 0, "blocks hit on a store that has none of them")
    with Instance(base) as gen:
        warm = gen.serve(Prompt(_PROMPT), drain_s=_DRAIN_S)
        salted = gen.serve(Prompt(_PROMPT, cache_salt="5"), drain_s=_DRAIN_S)
    checks.expect("reuse", warm.blocks_hit, _MATCHABLE, "blocks reused by another instance")
    checks.expect(
        "bit_exact", warm.blocks_verified, _MATCHABLE, "reused blocks equal to the oracle"
    )
    checks.expect("salt_isolation", salted.blocks_hit, 0, "blocks hit under another cache salt")
    for name, other in (
        ("other_dtype", config(Geometry(4, 4, 16, 16, "float16"), "model-dtype")),
        ("other_block_size", config(Geometry(4, 4, 16, 32), "model-block")),
        ("other_rank_count", config(_GEOMETRY, "model", ranks=1 if tp > 1 else 2)),
    ):
        with Instance(other) as instance:
            result = instance.serve(Prompt(_PROMPT), drain_s=_DRAIN_S)
        checks.expect(name, result.blocks_hit, 0, "blocks hit with another layout")
    _refused_pool(checks, config(_GEOMETRY, "model", Geometry(3, 4, 16, 16)))


def _refused_pool(checks: Checks, config: InstanceConfig) -> None:
    """A pool with a layer less than the model's configuration says must be refused by name."""
    try:
        with Instance(config):
            pass
    except SimulationError as error:
        refused = exit_code(error) == 2
        checks.add(
            Check(
                "layout_refusal",
                refused,
                f"a pool of 3 layers for a model of 4 is refused: {error}",
                "" if refused else "a refusal must be a configuration error",
            )
        )
    else:
        checks.add(
            Check(
                "layout_refusal",
                False,
                "a pool of 3 layers for a model of 4 was accepted",
                "report this: wrong bytes could be stored",
            )
        )
