"""`ctx` and `gen`: trtllm-serve with this connector, on the store that is up or the user's own."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import NoReturn

from mooncake_trtllm.cli.exits import GOOD, UsageError
from mooncake_trtllm.cli.stores import users_store, where_engines_store
from mooncake_trtllm.deploy.run_folder import RunFolder
from mooncake_trtllm.deploy.store_commands import client_environment
from mooncake_trtllm.local_store import LocalStoreError

__all__ = ["add_to", "run"]

_PROGRAM = "trtllm-serve"
_PORTS = {"ctx": 8001, "gen": 8002}


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds both commands."""
    for role, what in (("ctx", "prefill"), ("gen", "decode")):
        parser = commands.add_parser(
            role,
            help=f"run a {what} server: {_PROGRAM} on the store",
            epilog=f"What follows after -- goes to {_PROGRAM} as it is.",
        )
        parser.add_argument(
            "model",
            metavar="MODEL",
            help="folder or hub name of the model; with --dry-run it need not exist",
        )
        parser.add_argument("--tp-size", type=int, default=1, metavar="N", help="default: 1")
        parser.add_argument(
            "--port", type=int, default=_PORTS[role], metavar="N", help=f"default: {_PORTS[role]}"
        )
        parser.add_argument(
            "--config", type=Path, metavar="FILE", help=f"default: configs/{role}.yaml"
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="print the command instead of running it"
        )
        parser.set_defaults(run=run, role=role)


def run(options: argparse.Namespace) -> int:
    """Becomes the server, or prints how."""
    config = options.config or options.configs / f"{options.role}.yaml"
    if not config.is_file():
        raise UsageError(f"--config {config}: no such file; remedy: correct it")
    store = client_environment(RunFolder.open(options.run_dir))
    command = [
        *(_PROGRAM, options.model, "--backend", "pytorch"),
        *("--tp_size", str(options.tp_size), "--port", str(options.port)),
        *("--extra_llm_api_options", str(config.resolve())),
        *options.rest,
    ]
    if options.dry_run:
        if store is None and users_store() is None:
            print(
                "# no store is up: engines would use a folder of this host, "
                f"{where_engines_store()}; for a store of all hosts: `up`, or set MOONCAKE_MASTER, "
                "before running this"
            )
        words = [f"{name}={shlex.quote(value)}" for name, value in (store or {}).items()]
        print(" \\\n  ".join([*words, shlex.join(command)]))
        return GOOD
    if store is None and users_store() is None:
        raise LocalStoreError(
            "no store: none is up and MOONCAKE_MASTER is unset; remedy: run_ctx_gen_store.sh up"
        )
    found = shutil.which(_PROGRAM)
    if found is None:
        raise UsageError(
            f"{_PROGRAM} is not on PATH; remedy: install TensorRT-LLM, or --dry-run to see the "
            "command"
        )
    return _become(found, command, {**os.environ, **(store or {})})


def _become(program: str, command: list[str], environment: dict[str, str]) -> NoReturn:
    sys.stdout.flush()
    os.execve(program, command, environment)
