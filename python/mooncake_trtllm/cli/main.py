"""Parses the command line, runs a verb and turns what it raises into an exit code."""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from mooncake_trtllm import __version__
from mooncake_trtllm.cli import demo, explain, matrix, plot, selfcheck, timeline, trace
from mooncake_trtllm.cli.exits import BROKEN, USAGE, exit_code
from mooncake_trtllm.cli.output import OutputError, checked_output, have_streams, print_failure
from mooncake_trtllm.cli.signals import Terminated, ended_by_signals
from mooncake_trtllm.mooncake_wheel import quieten

__all__ = ["main", "run_guarded"]

_VERBS = (selfcheck, demo, trace, matrix, timeline, plot, explain)
_EPILOG = """\
exit codes: 0 good; 1 an invariant or a stated bar is broken; 2 wrong usage or configuration;
3 the store cannot be reached, or was lost during the run; 130 interrupted (Ctrl-C); 143 terminated.
With --json exactly one JSON object goes to standard output, also where a run ends without a result.
"""


class _WrongUsage(SystemExit):
    """What argparse refuses; it has been said on standard error."""

    def __init__(self, message: str) -> None:
        super().__init__(USAGE)
        self.message = message


class _Parser(argparse.ArgumentParser):
    """Tells what it refuses to whoever calls it, too. Verbs get parsers of the same class."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        print(f"{self.prog}: error: {message}", file=sys.stderr)
        raise _WrongUsage(message)


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = _Parser(
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
    have_streams()
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        options = parser().parse_args(words)
    except _WrongUsage as wrong:
        if "--json" in words:
            print_failure(wrong.message, USAGE)
        return USAGE
    return run_guarded(options)


def run_guarded(options: argparse.Namespace) -> int:
    """Runs `options.run`; turns signals and errors that users may see into exit codes."""
    have_streams()
    quieten()
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )
    verbose = getattr(options, "verbose", False)
    logging.getLogger("mooncake_trtllm").setLevel(logging.INFO if verbose else logging.WARNING)
    try:
        with checked_output(), ended_by_signals():
            ended = int(options.run(options))
            sys.stdout.flush()  # Here, where it can still be said that it does not go.
            return ended
    except KeyboardInterrupt:
        return _end(options, "interrupted; everything that was started is stopped", signal.SIGINT)
    except Terminated:
        return _end(options, "terminated; everything that was started is stopped", signal.SIGTERM)
    except BrokenPipeError:
        # The reader of our output has gone; there is nobody left to tell.
        sys.stderr.close()
        return BROKEN
    except Exception as error:
        code = exit_code(error)
        _say_failure(options, str(error) if code else repr(error), code or BROKEN)
        if code is None:
            raise
        print(f"mooncake-trtllm: error: {error}", file=sys.stderr)
        return code


def _end(options: argparse.Namespace, reason: str, number: signal.Signals) -> int:
    print(reason, file=sys.stderr)
    _say_failure(options, reason, 128 + number)
    return 128 + number


def _say_failure(options: argparse.Namespace, reason: str, code: int) -> None:
    """Verbs print their object when all else is done, so this one is the only one."""
    if getattr(options, "json", False):
        with contextlib.suppress(OutputError), checked_output():
            print_failure(reason, code)
