"""What importing costs and needs, and every arrangement of our package and Mooncake's wheel."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mooncake_trtllm

PACKAGE = Path(mooncake_trtllm.__file__).parent


@pytest.fixture(name="numpy_entry")
def numpy_fixture(tmp_path: Path) -> Path:
    """A path entry that holds numpy and nothing else."""
    entry = tmp_path / "numpy-only"
    entry.mkdir()
    for part in Path(np.__file__).parents[1].glob("numpy*"):
        (entry / part.name).symlink_to(part)
    return entry


def reexport_folder() -> Path:
    """The installed folder mooncake/tensorrt_llm, found without importing mooncake."""
    for entry in map(Path, filter(None, sys.path)):
        if (entry / "mooncake" / "tensorrt_llm" / "__init__.py").is_file():
            return entry / "mooncake" / "tensorrt_llm"
    raise AssertionError("mooncake/tensorrt_llm is not installed")


@pytest.fixture(name="ours")
def ours_fixture(tmp_path: Path) -> Path:
    """A path entry that holds our two packages and nothing else."""
    ours = tmp_path / "ours"
    (ours / "mooncake").mkdir(parents=True)
    (ours / "mooncake_trtllm").symlink_to(PACKAGE)
    (ours / "mooncake" / "tensorrt_llm").symlink_to(reexport_folder())
    return ours


@pytest.fixture(name="wheel")
def wheel_fixture(tmp_path: Path) -> Path:
    """A path entry that looks as Mooncake's wheel does: an __init__ that extends its path."""
    wheel = tmp_path / "wheel"
    (wheel / "mooncake").mkdir(parents=True)
    (wheel / "mooncake" / "__init__.py").write_text(
        "import pkgutil\n__path__ = pkgutil.extend_path(__path__, __name__)\nWHEEL = True\n"
    )
    (wheel / "mooncake" / "store.py").write_text("class MooncakeDistributedStore: pass\n")
    return wheel


# Only the standard library, numpy and the given entries can be imported.
GUARD = """
import sys
ALLOWED = {"numpy", "mooncake_trtllm", "mooncake"}
class Guard:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in ALLOWED:
            return None
        raise ImportError(f"{name} must not be imported")
sys.meta_path.insert(0, Guard())
"""


def run_with(code: str, *entries: Path, status: int = 0) -> str:
    """Run code that sees the standard library and these path entries only."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path += sys.argv[1:]\n{code}"]
        + [str(entry) for entry in entries],
        env={"PATH": os.environ["PATH"], "MC_BACKEND": "memory"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


IMPORT_ONLY = """
import os, socket, threading
def open_sockets():
    links = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
             if os.path.exists(f"/proc/self/fd/{n}")]
    return [link for link in links if link.startswith("socket:")]
import mooncake_trtllm
import mooncake.tensorrt_llm
from mooncake.tensorrt_llm import make_kv_connector_config
make_kv_connector_config()
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"torch", "tensorrt_llm"}, loaded
assert "mooncake.store" not in sys.modules
mooncake.tensorrt_llm.MooncakeKvCacheConnectorScheduler
mooncake.tensorrt_llm.MooncakeKvCacheConnectorWorker
assert threading.active_count() == 1 and len(os.listdir("/proc/self/task")) == 1
assert open_sockets() == []
print("ok")
"""


def test_importing_needs_only_numpy_and_starts_nothing(ours: Path, numpy_entry: Path) -> None:
    assert run_with(GUARD + IMPORT_ONLY, ours, numpy_entry).strip().endswith("ok")


def test_the_first_import_does_not_even_need_numpy(ours: Path) -> None:
    code = "import mooncake_trtllm; assert 'numpy' not in sys.modules; print('ok')"
    assert run_with(code, ours).strip() == "ok"


def test_importing_twice_gives_the_same_classes(ours: Path, numpy_entry: Path) -> None:
    code = """
import mooncake_trtllm, mooncake.tensorrt_llm as public
for name in public.__all__:
    assert getattr(public, name) is getattr(mooncake_trtllm, name), name
assert sorted(public.__all__) == sorted(mooncake_trtllm.__all__)
for module in (public, mooncake_trtllm):
    try:
        module.no_such_name
    except AttributeError as error:
        assert "no_such_name" in str(error)
    else:
        raise AssertionError
print("ok")
"""
    assert run_with(code, ours, numpy_entry).strip() == "ok"


BOTH = "import mooncake.tensorrt_llm, mooncake.store, mooncake\nassert mooncake.WHEEL\nprint('ok')"


@pytest.mark.parametrize("order", ["ours first", "wheel first"])
def test_package_and_wheel_on_different_entries(
    order: str, ours: Path, wheel: Path, numpy_entry: Path
) -> None:
    entries = (ours, wheel) if order == "ours first" else (wheel, ours)
    assert run_with(BOTH, *entries, numpy_entry).strip() == "ok"


def test_package_inside_the_wheels_folder(ours: Path, wheel: Path, numpy_entry: Path) -> None:
    (wheel / "mooncake" / "tensorrt_llm").symlink_to(ours / "mooncake" / "tensorrt_llm")
    (wheel / "mooncake_trtllm").symlink_to(PACKAGE)
    assert run_with(BOTH, wheel, numpy_entry).strip() == "ok"


def test_without_the_wheel_the_store_is_a_clear_message(ours: Path, numpy_entry: Path) -> None:
    """MC_BACKEND=mooncake and no wheel: start-up says what is missing and how to get it."""
    master = socket.create_server(("127.0.0.1", 0))  # something that listens is found first
    code = f"""
import os
address = "127.0.0.1:{master.getsockname()[1]}"
os.environ.update(MC_BACKEND="mooncake", MOONCAKE_MASTER=address, MC_MODEL_REVISION="r")
from types import SimpleNamespace
from mooncake.tensorrt_llm import KvConnectorError, MooncakeKvCacheConnectorScheduler
try:
    MooncakeKvCacheConnectorScheduler(SimpleNamespace(model="m"))
except KvConnectorError as error:
    print(type(error).__name__, error)
"""
    with master:
        output = run_with(code, ours, numpy_entry)
    assert "KvConnector" in output
    assert "mooncake-transfer-engine" in output
    assert "Remedy" in output


@pytest.mark.parametrize("init", ["", "raise RuntimeError('broken')"], ids=["empty", "broken"])
def test_a_foreign_mooncake_in_front(
    init: str, ours: Path, tmp_path: Path, numpy_entry: Path
) -> None:
    """It hides our public name; the configuration then uses the other name and says why."""
    foreign = tmp_path / "foreign"
    (foreign / "mooncake").mkdir(parents=True)
    (foreign / "mooncake" / "__init__.py").write_text(init)
    code = """
import importlib, logging
logging.basicConfig()
from mooncake_trtllm import make_kv_connector_config
config = make_kv_connector_config()
module = importlib.import_module(config.connector_module)
print(config.connector_module, getattr(module, config.connector_worker_class).__name__)
"""
    output = run_with(code, foreign, ours, numpy_entry)
    assert "mooncake_trtllm MooncakeKvCacheConnectorWorker" in output
    assert str(foreign / "mooncake") in output
    assert "Remedy" in output


def test_a_path_added_after_mooncake_was_imported(
    ours: Path, wheel: Path, numpy_entry: Path
) -> None:
    code = """
import logging
logging.basicConfig()
ours = next(entry for entry in sys.path if entry.endswith("/ours"))
sys.path.remove(ours)
import mooncake
sys.path.append(ours)
from mooncake_trtllm import make_kv_connector_config
print(make_kv_connector_config().connector_module)
"""
    output = run_with(code, ours, wheel, numpy_entry)
    assert "mooncake_trtllm" in output


def test_we_never_ship_the_wheels_init() -> None:
    source = Path(__file__).parents[3] / "python" / "mooncake"
    assert sorted(p.relative_to(source).as_posix() for p in source.rglob("*.py")) == [
        "tensorrt_llm/__init__.py"
    ]


@pytest.mark.mooncake
def test_inside_an_environment_with_the_real_wheel() -> None:
    code = "import mooncake.tensorrt_llm, mooncake.store; print('ok')"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "ok"
