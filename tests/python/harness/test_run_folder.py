"""The private folder of a store: who may use it, and what its lock and record mean."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import alive

from mooncake_trtllm.cli.exits import UsageError
from mooncake_trtllm.deploy.__main__ import main
from mooncake_trtllm.deploy.identity import ProcessIdentity
from mooncake_trtllm.deploy.run_folder import Record, RunFolder


def record_of(process: ProcessIdentity) -> Record:
    return Record(process, process, process, "1", "http://127.0.0.1:1", 1, {"MOONCAKE_MASTER": "m"})


@pytest.fixture(name="sleeper")
def sleeper_fixture() -> subprocess.Popen[bytes]:
    """A process that nothing here may touch."""
    return subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])


def test_the_folder_is_private(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path / "run")
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.path.chmod(0o755)
    with pytest.raises(UsageError, match="is open to others"):
        RunFolder.open(folder.path)


def test_a_link_or_a_file_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is no folder"):
        RunFolder.open(tmp_path / "link")
    with pytest.raises(UsageError, match="run folder"):
        RunFolder.open(tmp_path / "file")


def test_the_lock_is_held_once_and_goes_with_its_descriptor(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path / "run")
    lock = folder.take_lock()
    assert lock is not None
    assert folder.take_lock() is None
    assert folder.in_use()
    os.close(lock)
    assert not folder.in_use()


def test_a_record_comes_back_and_a_broken_one_is_none(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path / "run")
    assert folder.read() is None
    record = record_of(ProcessIdentity.of(os.getpid()))
    folder.write(record)
    assert folder.read() == record
    (folder.path / "store.json").write_text('{"keeper": 1}')
    assert folder.read() is None


def test_a_pid_that_was_given_to_another_process_is_not_that_process(
    sleeper: subprocess.Popen[bytes],
) -> None:
    with sleeper:
        me = ProcessIdentity.of(sleeper.pid)
        assert me.alive
        other = ProcessIdentity(sleeper.pid, me.started + 1)
        assert not other.alive
        assert other.signal(signal.SIGKILL, 0)
        assert alive(sleeper.pid)
        assert me.signal(signal.SIGKILL, 10)
    assert not alive(sleeper.pid)
    assert me.signal(signal.SIGKILL, 0)


def test_down_leaves_what_a_stale_record_names_alone(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    """A crash left the record; the pid in it is another program's now."""
    with sleeper:
        folder = RunFolder.open(tmp_path / "run")
        folder.write(record_of(ProcessIdentity.of(sleeper.pid)))
        assert main(["--run-dir", str(folder.path), "status"]) == 3
        assert main(["--run-dir", str(folder.path), "env"]) == 3
        assert main(["--run-dir", str(folder.path), "down"]) == 0
        assert "a record that a crash left is removed" in capsys.readouterr().out
        assert folder.read() is None
        assert alive(sleeper.pid)
        sleeper.kill()


def test_down_stops_nothing_when_lock_and_record_disagree(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    with sleeper:
        folder = RunFolder.open(tmp_path / "run")
        lock = folder.take_lock()
        assert lock is not None
        identity = ProcessIdentity.of(sleeper.pid)
        folder.write(record_of(ProcessIdentity(identity.pid, identity.started + 1)))
        assert main(["--run-dir", str(folder.path), "down"]) == 1
        assert "nothing was stopped" in capsys.readouterr().err
        assert alive(sleeper.pid)
        os.close(lock)
        sleeper.kill()
