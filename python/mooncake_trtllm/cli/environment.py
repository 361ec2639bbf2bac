"""What `selfcheck` reports of the machine and the installation."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import platform
import resource
import subprocess
import sys

from mooncake_trtllm.cli import stores
from mooncake_trtllm.cli.checks import Check, Checks
from mooncake_trtllm.cli.output import human_bytes
from mooncake_trtllm.local_store import wheel_version

__all__ = ["report"]

_LEAST_BYTES = 1 << 30
_IMPORT_TIMEOUT_S = 60


def report(checks: Checks, backend: str) -> None:
    """Adds the checks that need no store."""
    checks.add(
        Check(
            "python",
            (3, 10) <= sys.version_info[:2] <= (3, 13),
            f"{platform.python_version()} on {platform.machine()} {platform.system()}",
            "use Python 3.10 to 3.13",
        )
    )
    checks.add(Check("numpy", True, importlib.metadata.version("numpy")))
    checks.add(_importable("native_module", "mooncake_trtllm._native"))
    checks.add(_importable("connector", "mooncake.tensorrt_llm"))
    checks.add(_runtime())
    checks.add(_wheel(backend))
    checks.add(_memory())


def _importable(name: str, module: str) -> Check:
    try:
        found = importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - a broken installation may raise anything
        return Check(
            name,
            False,
            f"import {module}: {type(error).__name__}: {error}",
            "install the package again: pip install --force-reinstall mooncake-trtllm, or "
            "`make setup` in a source tree",
        )
    return Check(name, True, f"{module} from {getattr(found, '__file__', None) or 'a namespace'}")


def _runtime() -> Check:
    try:
        version = importlib.metadata.version("tensorrt-llm")
    except importlib.metadata.PackageNotFoundError:
        return Check("tensorrt_llm", True, "not installed; the simulator stands in for it")
    return Check("tensorrt_llm", True, version)


def _wheel(backend: str) -> Check:
    """Imports the store's binding in a child: it starts threads and installs signal handlers."""
    version = wheel_version()
    remedy = "pip install mooncake-transfer-engine-non-cuda==0.3.13.post1"
    if version is None:
        needed = backend == "mooncake"
        return Check("mooncake_wheel", not needed, "not installed", remedy if needed else "")
    child = subprocess.run(
        [sys.executable, "-c", "import mooncake.store"],
        capture_output=True,
        text=True,
        timeout=_IMPORT_TIMEOUT_S,
        check=False,
    )
    if child.returncode != 0:
        reason = (child.stderr.strip().splitlines() or [f"status {child.returncode}"])[-1]
        return Check(
            "mooncake_wheel",
            backend != "mooncake",
            f"{version}, but mooncake.store does not import: {reason}",
            "apt-get install libibverbs1 librdmacm1 libcurl4 libnuma1 liburing2",
        )
    return Check("mooncake_wheel", True, f"{version}, mooncake.store imports")


def _memory() -> Check:
    available = stores.available_bytes()
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    lockable = "unlimited" if soft == resource.RLIM_INFINITY else human_bytes(soft)
    if available is None:
        return Check("memory", True, f"amount unknown; lockable {lockable}")
    return Check(
        "memory",
        available >= _LEAST_BYTES,
        f"{human_bytes(available)} available; lockable {lockable}",
        "free at least 1 GiB",
    )
