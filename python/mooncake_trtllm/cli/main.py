"""Parses the command line, runs a verb and turns what it raises into an exit code."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence

from mooncake_trtllm import __version__
from mooncake_trtllm.cli import demo, matrix, plot, selfcheck, timeline, trace
from mooncake_trtllm.cli.exits import exit_code
from mooncake_trtllm.cli.signals import Terminated, ended_by_signals

__all__ = ["main", "run_guarded"]

_VERBS = (selfcheck, demo, trace, matrix, timeline, plot)
_EPILOG = """\
exit codes: 0 good; 1 an invariant or a stated bar is broken; 2 wrong usage or configuration;
3 the store cannot be reached. With --json exactly one JSON object goes to standard output.
"""


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="mooncake-trtllm",
        description="Tools of the Mooncake-Store-backed KV-cache connector for TensorRT-LLM.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"mooncake-trtllm {__version__}")
    verbs = top.add_subparsers(metavar="VERB", required=True)
    for verb in _VERBS:
        verb.add_to(verbs)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit code."""
    return run_guarded(parser().parse_args(arguments))


def run_guarded(options: argparse.Namespace) -> int:
    """Runs `options.run`; turns signals and errors that users may see into exit codes."""
    # Must be in place before anything loads the store's library; what the user set stays.
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )
    try:
        with ended_by_signals():
            return int(options.run(options))
    except KeyboardInterrupt:
        print("interrupted; everything that was started is stopped", file=sys.stderr)
        return 128 + signal.SIGINT
    except Terminated:
        print("terminated; everything that was started is stopped", file=sys.stderr)
        return 128 + signal.SIGTERM
    except BrokenPipeError:
        # The reader of our output has gone; there is nobody left to tell.
        sys.stderr.close()
        return 1
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        print(f"mooncake-trtllm: error: {error}", file=sys.stderr)
        return code
