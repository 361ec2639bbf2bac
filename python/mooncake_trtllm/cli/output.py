"""What a verb prints: one JSON object, or text; progress on standard error at a terminal only."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO, TypeVar, cast

from mooncake_trtllm.cli.exits import BROKEN, RunError

__all__ = [
    "OutputError",
    "Progress",
    "add_output_options",
    "checked_output",
    "have_streams",
    "human_bytes",
    "machine",
    "print_failure",
    "print_json",
    "rounded",
    "table",
]

_T = TypeVar("_T")
_BAR = 30
_EVERY_S = 0.1
_CLEAR = "\x1b[K"


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """`--json` and `--verbose`, which every verb has."""
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="show on standard error what the connector logs (settings in force, keyspaces) and "
        "what ranks that are processes print",
    )


class OutputError(RunError):
    """Standard output does not take what is to be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(
            f"standard output: the result could not be written ({error.strerror or error}); "
            "remedy: free space where it goes, or send it elsewhere",
            BROKEN,
        )


class _CheckedOutput:
    """A stream whose refusals can be told from those of other files."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._checked(lambda: self._stream.write(text))

    def flush(self) -> None:
        self._checked(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _checked(self, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except OSError as error:
            # What is left is not tried again at the end of the process, which would say so twice.
            with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
            if isinstance(error, BrokenPipeError):  # Nobody reads on, which is no trouble.
                raise
            raise OutputError(error) from None


def have_streams() -> None:
    """What was closed before the start (`>&-`) takes what is written to it, for nobody."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - to the end


def checked_output() -> contextlib.AbstractContextManager[object]:
    """In its block, what standard output refuses is an OutputError."""
    return contextlib.redirect_stdout(cast("TextIO", _CheckedOutput(sys.stdout)))


def print_json(content: Mapping[str, Any]) -> None:
    """Exactly one object on standard output."""
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


def print_failure(reason: str, code: int) -> None:
    """`error/1`: what stands on standard output of a run that ends without a result."""
    print_json({"schema": "error/1", "ok": False, "failure": reason, "exit_code": code})


def machine() -> dict[str, Any]:
    """What else may have decided how fast a run was, taken at its end."""
    try:
        load = [round(average, 2) for average in os.getloadavg()]
    except OSError:
        load = None
    return {"cores": len(os.sched_getaffinity(0)), "load_average": load}


def rounded(value: float | None, digits: int = 4) -> float | None:
    """A ratio or a rate, short enough to read; None stays unknown."""
    return None if value is None else round(value, digits)


def human_bytes(count: float) -> str:
    """For people: 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def table(heading: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as their widest cell; numbers to the right."""
    cells = [[str(cell) for cell in row] for row in (heading, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    first = rows[0] if rows else heading
    right = [_is_number(cell) for cell in first]
    lines = [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines) + "\n"


def _is_number(cell: object) -> bool:
    try:
        float(str(cell))
    except ValueError:
        return False
    return True


class Progress:
    """A bar on standard error; silent where that is no terminal. Leaving the block takes it away.

    A product that needs numpy alone draws its one bar itself.
    """

    def __init__(self, label: str, total: int) -> None:
        self.label = label
        self._total = max(total, 1)
        self._shown_at = 0.0
        self._on = sys.stderr.isatty()

    def show(self, done: int) -> None:
        """So many of the total are done."""
        now = time.monotonic()
        if self._on and (done >= self._total or now - self._shown_at > _EVERY_S):
            self._shown_at = now
            filled = _BAR * done // self._total
            bar = "#" * filled + "." * (_BAR - filled)
            sys.stderr.write(f"\r{_CLEAR}{self.label} [{bar}] {done}/{self._total}")
            sys.stderr.flush()

    def note(self, line: str) -> None:
        """One line that stays, also where there is no bar."""
        sys.stderr.write(f"\r{_CLEAR}{line}\n" if self._on else f"{line}\n")
        sys.stderr.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._on:
            sys.stderr.write("\r" + _CLEAR)
            sys.stderr.flush()
