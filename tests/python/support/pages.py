"""What the documentation says, read back by its tests."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def tables(text: str, first_column: str) -> Iterator[dict[str, dict[str, str]]]:
    """Each Markdown table whose first column has that title: first cell -> column -> cell."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        columns = cells(line)
        if not columns or columns[0] != first_column:
            continue
        rows: dict[str, dict[str, str]] = {}
        for row in lines[number + 2 :]:
            values = cells(row)
            if not values:
                break
            assert len(values) == len(columns), f"{row}: {len(values)} cells, {len(columns)} titles"
            name = values[0].strip("`")
            assert name not in rows, f"{name} has two rows"
            rows[name] = dict(zip(columns, values, strict=True))
        yield rows


def cells(line: str) -> list[str]:
    if not line.startswith("|"):
        return []
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def section(page: str, heading: str) -> str:
    text = (ROOT / page).read_text()
    _, found, rest = text.partition(f"\n## {heading}\n")
    assert found, f"{page} has no section '{heading}'"
    return rest.partition("\n## ")[0]


def named_in_backticks(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


@functools.cache
def help_text(*command: str) -> str:
    environment = {**os.environ, "COLUMNS": "200", "PYTHON": sys.executable}
    return subprocess.run(
        [*command, "--help"], check=True, capture_output=True, text=True, env=environment
    ).stdout


def verbs() -> set[str]:
    listed = help_text(sys.executable, "-m", "mooncake_trtllm").partition("  VERB\n")[2]
    found = set(re.findall(r"^    (\w+)", listed.partition("\n\n")[0], flags=re.MULTILINE))
    assert found, "the command line lists no verbs"
    return found
