"""Keeps the tables of docs/source/metrics.md equal to those in the code.

metrics_page.py           exit status 1 and a message if they differ
metrics_page.py --write   rewrite the page's tables
"""

from __future__ import annotations

import sys
from pathlib import Path

from settings_page import keep_equal

PAGE = Path(__file__).resolve().parent.parent / "docs" / "source" / "metrics.md"
BEGIN = "<!-- tables: written by scripts/metrics_page.py from the headers of the core -->\n"


def render() -> str:
    """Return a table for each class as Markdown."""
    from mooncake_trtllm._stats import stat_table

    parts = []
    for role in ("scheduler", "worker"):
        lines = [f"### {role.capitalize()}", "", f"| {role} | kind | meaning |", "|---|---|---|"]
        lines += [f"| `{stat.name}` | {stat.kind} | {stat.help} |" for stat in stat_table(role)]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(keep_equal(PAGE, BEGIN, render(), __doc__))
