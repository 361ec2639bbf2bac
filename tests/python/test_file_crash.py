"""Killed writers of the file store leave whole objects, no lock, no lost space: the short form of
`make crash-test`."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import crash

KILLS = 60


@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
def test_killed_writers_leave_whole_objects_or_none(tmp_path: Path, named: bool) -> None:
    outcome = crash.run(tmp_path / "store", kills=KILLS, seed=20261130, named=named)
    assert not outcome.broken, outcome.text()
    assert outcome.kills >= KILLS
    assert outcome.kills_at_step, "no writer died inside of a change"
    assert outcome.objects_checked > 300


def test_the_judge_sees_part_of_an_object_and_foreign_bytes() -> None:
    """A run that finds nothing proves something only if it would find something."""
    objects = crash.Objects(seed=1)
    key, other = objects.keys[:2]
    content = objects.content[key]
    assert objects.verdict(key, "ok", content) == "ok"
    assert objects.verdict(key, "miss", b"") == "miss"
    for wrong in (content[:-1], b"", content + b"x", objects.content[other]):
        assert objects.verdict(key, "ok", wrong) not in ("ok", "miss")
    assert objects.verdict(key, "down", b"") not in ("ok", "miss")


def test_a_store_that_publishes_before_it_writes_is_caught(tmp_path: Path) -> None:
    """The checker reads what lies there, whoever wrote it."""
    objects = crash.Objects(seed=1)
    path = tmp_path / "store"
    checker = crash.Checker(objects, str(path))
    try:
        assert set(checker.ask("read")) == {"miss"}
        assert checker.ask("fill") > 0
        victim = next(iter(path.glob("[0-9a-f][0-9a-f]/=*")))
        victim.write_bytes(victim.read_bytes()[:-1])
        wrong = [text for text in checker.ask("read") if text not in ("ok", "miss")]
        assert len(wrong) == 1
        assert "bytes served of" in wrong[0]
    finally:
        checker.end()
