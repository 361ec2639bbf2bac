"""What people see: tables, and a bar at a terminal alone."""

from __future__ import annotations

import io
import sys

import pytest

from mooncake_trtllm.cli.output import Progress, table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_is_drawn_at_a_terminal_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("agentic", 4) as progress:
        progress.show(2)
        progress.label = "restart"
        progress.show(4)
        assert "agentic [###############...............] 2/4" in terminal.getvalue()
        assert terminal.getvalue().endswith("restart [##############################] 4/4")
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_elsewhere_there_is_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with Progress("agentic", 4) as progress:
        progress.show(4)
    assert file.getvalue() == ""


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert table(("name", "n"), [("a", 1), ("longer", 100)]) == (
        "name      n\na         1\nlonger  100\n"
    )
