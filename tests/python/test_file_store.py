"""The file store where it needs a process of its own: other users, full disks, other processes; and
through the connector's classes."""

from __future__ import annotations

import itertools
import shutil
import stat
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.engine import Engine, Request
from support.processes import clean_environment, run_python

from mooncake_trtllm import KvConnectorConfigError, KvConnectorLoadError, _native
from mooncake_trtllm.settings import default_file_path, load_settings

MakeEngine = Callable[..., Engine]
CAPACITY = 64 << 20
TOKENS = list(range(1000, 1061))
FULL = 60 // 8
_ids = itertools.count(1)

AS_ANOTHER_USER = """
import os, sys, tempfile
from pathlib import Path
from mooncake_trtllm import _native, KvConnectorConfigError
if os.geteuid() == 0:  # who may do anything proves nothing
    os.setgid(65534)
    os.setuid(65534)
base = Path(tempfile.mkdtemp(prefix="kvc-other-user-", dir="/tmp"))
"""


def request(tokens: list[int] | None = None, **extra: Any) -> Request:
    return Request(next(_ids), list(tokens or TOKENS), extra, "")


# The store ------------------------------------------------------------------------------------


def test_conformance(tmp_path: Path) -> None:
    report = tmp_path / "conformance.xml"
    run_python(
        "import sys\n"
        "from mooncake_trtllm import _conformance\n"
        "report, path = sys.argv[1:]\n"
        'arguments = ["conformance", f"--gtest_output=xml:{report}"]\n'
        f"sys.exit(_conformance.run_file(arguments, path=path, capacity_bytes={CAPACITY}))\n",
        str(report),
        str(tmp_path / "store"),
    )
    suites = {suite.get("name"): suite for suite in ET.parse(report).getroot()}
    assert set(suites) == {"File", "BreakerOverDeadlineOverFile"}
    for suite in suites.values():
        assert len(suite) >= 28
        assert (suite.get("failures"), suite.get("skipped")) == ("0", "0")
    store = _native.FileStore(str(tmp_path / "store"), CAPACITY)
    assert store.take_stock()
    # One test closes the store in the middle of its puts.
    left = [file.name for file in (tmp_path / "store").glob("??/*")]
    assert [name for name in left if "%43lose%45nds%43alls" not in name] == []


def test_another_process_reads_what_this_one_wrote(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = _native.FileStore(str(path), CAPACITY)
    assert store.put([("key", b"bytes")]) == [("ok", "stored")]
    done = run_python(
        "import sys\n"
        "from mooncake_trtllm import _native\n"
        f"store = _native.FileStore(sys.argv[1], {CAPACITY})\n"
        'print(store.get(["key"], 10), store.put([("key", b"other"), ("theirs", b"x")]))\n'
        "sys.stdout.flush()\n"
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n",
        str(path),
        status=-9,
    )
    assert done.stdout == "[('ok', b'bytes')] [('ok', 'existed'), ('ok', 'stored')]\n"
    assert store.get(["theirs"], 10) == [("ok", b"x")]


def test_a_full_file_system_gives_way_to_new_blocks(tmp_path: Path) -> None:
    """8 MiB of file system under a limit of 64: what is there is used, the store never stops."""
    program = f"""
import os, sys
from mooncake_trtllm import _native
folder = sys.argv[1]
store = _native.FileStore(folder + "/store", {CAPACITY})
limit = store.stats()["store_file_bytes_limit"]
assert 7 << 20 < limit < 8 << 20, limit
for number in range(200):
    assert store.put([(str(number), bytes([number]) * 100_000)]) == [("ok", "stored")], number
assert store.stats()["store_file_evicted"] > 100
there = [n for n in range(200) if store.get([str(n)], 100_000)[0] == ("ok", bytes([n]) * 100_000)]
assert there == list(range(200))[-len(there):] and len(there) > 60, there

# Others fill it up: the store shrinks, and says so only where nothing is left of it.
with open(folder + "/others", "wb") as others:
    try:
        while True:
            others.write(bytes(1 << 16))
            others.flush()
    except OSError:
        pass
    answers = [store.put([(f"late {{n}}", bytes(100_000))])[0][0] for n in range(50)]
    assert set(answers) <= {{"ok", "back off"}}, answers
    assert store.get(["199"], 100_000)[0][0] in ("ok", "miss")
    others.truncate(0)
import time
end = time.monotonic() + 10
while store.put([("again", b"x")])[0][0] != "ok":
    assert time.monotonic() < end
assert store.take_stock()
print("done")
"""
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(tmp_path)]
    inside = f'{" ".join(command)} && exec {sys.executable} -c "$PROGRAM" {tmp_path}'
    isolated = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*isolated, " ".join(command)], check=False, capture_output=True).returncode:
        # The same answers, injected, are tested in C++.
        warnings.warn("no file system can be mounted here", stacklevel=1)
        return
    done = subprocess.run(
        [*isolated, inside],
        env=clean_environment(PROGRAM=program),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "done\n", done.stderr


def test_a_file_size_limit_backs_off_and_does_not_end_the_process(tmp_path: Path) -> None:
    run_python(
        "import resource, signal, sys\n"
        "from mooncake_trtllm import _native\n"
        f"store = _native.FileStore(sys.argv[1], {CAPACITY})\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        'put = store.put([("a", bytes(60_000)), ("b", bytes(40_000))])\n'
        'assert put == [("back off", "none"), ("ok", "stored")], put\n'
        'assert store.stats()["store_file_puts_backed_off"] == 1\n',
        str(tmp_path / "store"),
    )


def test_a_folder_that_becomes_inaccessible_is_down_and_then_back() -> None:
    run_python(
        AS_ANOTHER_USER + f"store = _native.FileStore(str(base / 'store'), {CAPACITY})\n"
        'assert store.put([("key", b"bytes")]) == [("ok", "stored")]\n'
        "(base / 'store').chmod(0)\n"
        'assert store.get(["key"], 10) == [("down", b"")]\n'
        'assert store.exists(["key"]) == ["down"]\n'
        'assert store.put([("other", b"x")]) == [("back off", "none")]\n'
        "(base / 'store').chmod(0o700)\n"
        'assert store.get(["key"], 10) == [("ok", b"bytes")]\n'
        'assert store.put([("other", b"x")]) == [("ok", "stored")]\n'
        "import shutil; shutil.rmtree(base)\n"
    )


def test_an_unwritable_folder_is_a_start_up_error() -> None:
    run_python(
        AS_ANOTHER_USER + "store = base / 'store'\n"
        "def refused(*parts):\n"
        "    try:\n"
        f"        _native.FileStore(str(store), {CAPACITY})\n"
        "    except KvConnectorConfigError as error:\n"
        "        for part in (str(store), 'remedy: ', 'MC_FILE_PATH', *parts):\n"
        "            assert part in str(error), error\n"
        "    else:\n"
        "        raise SystemExit('accepted')\n"
        "base.chmod(0o500)\n"
        "refused('cannot make this folder', 'Permission denied')\n"
        "base.chmod(0o700)\n"
        "store.mkdir()\n"
        "store.chmod(0o500)\n"
        "refused('for writing', 'Permission denied')\n"
        "store.chmod(0o700)\n"
        "import shutil; shutil.rmtree(base)\n"
    )


# Through the classes --------------------------------------------------------------------------


@pytest.fixture(name="folder")
def folder_fixture(environment: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    environment.setenv("MC_BACKEND", "file")
    environment.setenv("MC_FILE_PATH", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.mark.parametrize("tp", [1, 2])
def test_blocks_outlive_their_engine(make_engine: MakeEngine, folder: Path, tp: int) -> None:
    first = make_engine(tp=tp)
    assert first.serve(request()) == 0
    first.close()
    second = make_engine(tp=tp)
    assert second.serve(request()) == FULL
    assert second.serve(request(cache_salt="other")) == 0
    objects = list(folder.glob("??/=*"))
    assert len(objects) == 2 * FULL * (tp + 1)
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in objects)


def test_figures_of_the_folder_are_among_those_of_the_worker(
    make_engine: MakeEngine, folder: Path
) -> None:
    engine = make_engine()
    engine.serve(request())
    taken = sum(file.stat().st_size for file in folder.glob("??/=*"))
    before = engine.worker.metrics()
    assert taken <= before["store_file_bytes_used"] <= before["store_file_bytes_limit"]
    shutil.rmtree(folder)
    engine.serve(request([1, *TOKENS]))
    after = engine.worker.stats()
    assert (after["store_file_reopened"], after["store_file_reads_failed"]) == (1, 0)
    engine.close()
    assert engine.worker.stats()["store_file_reopened"] == 1, "the last figures stay"


def test_a_removed_folder_costs_misses_and_no_error(make_engine: MakeEngine, folder: Path) -> None:
    engine = make_engine()
    engine.serve(request())
    shutil.rmtree(folder)
    assert engine.serve(request([1, *TOKENS])) == 0
    assert engine.serve(request([1, *TOKENS])) == (len(TOKENS)) // 8
    assert engine.worker.stats()["saves_failed"] == 0


@pytest.mark.parametrize("promise", ["staged", "leased"])
def test_a_cut_block_is_rejected_and_healed(
    promise: str, make_engine: MakeEngine, folder: Path, environment: pytest.MonkeyPatch
) -> None:
    """What a power loss may leave: the checksum or the size says so, and a later save repairs."""
    environment.setenv("MC_PROMISE", promise)
    make_engine().serve(request())
    shards = sorted(folder.glob("??/=*,r0"))
    shards[0].write_bytes(b"")  # no object
    healer = make_engine()
    assert healer.serve(request()) < FULL
    assert make_engine().serve(request()) == FULL, "stored again"

    shards[1].write_bytes(shards[1].read_bytes()[:-1])
    if promise == "leased":
        with pytest.raises(KvConnectorLoadError):
            healer.run(request())
    assert make_engine().serve(request()) < FULL, "it was removed"
    assert make_engine().serve(request()) == FULL, "and stored again"


def test_without_any_setting_blocks_lie_in_the_folder_of_the_user(
    environment: pytest.MonkeyPatch,
) -> None:
    environment.delenv("MC_BACKEND")
    settings = load_settings()
    assert settings.backend == "file"
    assert settings.file_path == default_file_path()
    assert settings.file_max_bytes == 8 << 30
    # Neither a login nor a program's own temporary folder moves it.
    for name in ("XDG_RUNTIME_DIR", "TMPDIR", "HOME"):
        environment.setenv(name, "/elsewhere")
    assert load_settings().file_path == settings.file_path
    assert settings.file_path.startswith(("/dev/shm/mooncake-kv-", "/tmp/mooncake-kv-"))


def test_a_folder_that_cannot_be_used_is_a_start_up_error(
    make_engine: MakeEngine, folder: Path
) -> None:
    folder.write_text("a file")
    with pytest.raises(KvConnectorConfigError) as raised:
        make_engine()
    for part in (str(folder), "must be a folder itself", "MC_FILE_PATH"):
        assert part in str(raised.value)
