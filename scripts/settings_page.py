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
        text = ", ".join(f"`{choice}`" for choice in spec["choices"])
        later = ", ".join(f"`{choice}`" for choice in spec["later_choices"])
        return f"{text} (later: {later})" if later else text
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


def split_page(text: str) -> tuple[str, str, str]:
    """Return what stands before, between and after the markers."""
    before, begin, rest = text.partition(BEGIN)
    table, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} has not both marker lines {BEGIN!r} and {END!r}")
    return before, table, after


def main() -> int:
    """Compare or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="rewrite the page's table")
    write = parser.parse_args().write
    from mooncake_trtllm._native import setting_table

    text = PAGE.read_text()
    before, table, after = split_page(text)
    wanted = render(list(setting_table()))
    if table == wanted:
        return 0
    if write:
        PAGE.write_text(before + BEGIN + wanted + END + after)
        return 0
    print(f"{PAGE}: differs from the code; remedy: settings_page.py --write", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
