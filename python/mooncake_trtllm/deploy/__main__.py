"""Parses the command line of run_ctx_gen_store.sh."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mooncake_trtllm.cli.main import run_guarded
from mooncake_trtllm.deploy import servers, showcase, store_commands

__all__ = ["main"]

_EPILOG = """\
exit codes: 0 good; 1 an invariant or a stated bar is broken; 2 wrong usage or configuration;
3 the store cannot be reached, or is not up; 130 interrupted; 143 terminated.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    top = argparse.ArgumentParser(
        prog="run_ctx_gen_store.sh",
        description="A Mooncake Store on this machine, and CTX and GEN servers that use it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="private folder of the store (default: one for each user, in $XDG_RUNTIME_DIR or the "
        "folder for temporary files)",
    )
    # Where the templates are; the script says it.
    top.add_argument("--configs", type=Path, default=Path("configs"), help=argparse.SUPPRESS)
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for module in (store_commands, servers, showcase):
        module.add_to(commands)
    words = list(sys.argv[1:] if arguments is None else arguments)
    # argparse hands "--" to whichever parser comes first; what follows is another program's.
    own, dashes, rest = _split(words)
    options = top.parse_args(own)
    if dashes and options.run is not servers.run:
        top.error(f"-- {' '.join(rest)}: only ctx and gen hand options on")
    options.rest = rest
    return run_guarded(options)


def _split(words: list[str]) -> tuple[list[str], bool, list[str]]:
    if "--" not in words:
        return words, False, []
    place = words.index("--")
    return words[:place], True, words[place + 1 :]


if __name__ == "__main__":
    sys.exit(main())
