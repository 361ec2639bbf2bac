"""Keeps the table of docs/source/settings.md equal to the table in the code.

settings_page.py           exit status 1 and a message if they differ
settings_page.py --write   rewrite the page's table
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "source" / "settings.md"
BEGIN = "<!-- table: written by scripts/settings_page.py from src/settings/setting_table.cc -->\n"
END = "<!-- end of table -->\n"
Row = dict[str, Any]
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def size_text(count: int) -> str:
    """Return a number of bytes in the largest unit that divides it."""
    unit = 0
    while count and count % 1024 == 0 and unit + 1 < len(UNITS):
        count //= 1024
        unit += 1
    return f"{count} {UNITS[unit]}" if count else "0"


def values_text(spec: Row) -> str:
    """Return what a setting may be."""
    if spec["type"] == "choice":
        return ", ".join(f"`{choice}`" for choice in spec["choices"])
    if spec["type"] == "bytes":
        return f"{size_text(spec['minimum'])} to {size_text(spec['maximum'])}"
    if spec["type"] in ("integer", "milliseconds"):
        maximum = "2^63 - 1" if spec["maximum"] == 2**63 - 1 else str(spec["maximum"])
        return f"{spec['minimum']} to {maximum}"
    return ""


def rows(table: Iterable[Row], foreign: bool) -> list[str]:
    """Return the rows of our settings, or of the store client's."""
    lines = []
    for spec in table:
        if spec["foreign"] == foreign:
            default = f"`{spec['default']}`" if spec["default"] else "unset"
            cells = (f"`{spec['name']}`", spec["type"], default, values_text(spec), spec["doc"])
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def render(table: list[Row]) -> str:
    """Return both tables as Markdown."""
    head = ["| setting | type | default | values | meaning |", "|---|---|---|---|---|"]
    lines = [*head, *rows(table, foreign=False), "", "Mooncake's own, with Mooncake's meaning:", ""]
    return "\n".join([*lines, *head, *rows(table, foreign=True)]) + "\n"


def keep_equal(page: Path, begin: str, wanted: str, what: str | None) -> int:
    """Compare what stands between the markers of a page with `wanted`, or write it there."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--write", action="store_true", help="rewrite the page's table")
    write = parser.parse_args().write
    text = page.read_text()
    before, found_begin, rest = text.partition(begin)
    table, found_end, after = rest.partition(END)
    if not found_begin or not found_end:
        raise ValueError(f"{page} has not both marker lines {begin!r} and {END!r}")
    if table == wanted:
        return 0
    if write:
        page.write_text(before + begin + wanted + END + after)
        return 0
    script = Path(sys.argv[0]).name
    print(f"{page}: differs from the code; remedy: {script} --write", file=sys.stderr)
    return 1


def main() -> int:
    """Compare or write."""
    from mooncake_trtllm._native import setting_table

    return keep_equal(PAGE, BEGIN, render(list(setting_table())), __doc__)


if __name__ == "__main__":
    sys.exit(main())
