"""What `selfcheck` reports of the machine and the installation."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import resource
import socket
import subprocess
import sys

from mooncake_trtllm import __version__
from mooncake_trtllm.cli import stores
from mooncake_trtllm.cli.checks import Check, Checks
from mooncake_trtllm.cli.exits import USAGE
from mooncake_trtllm.cli.output import human_bytes
from mooncake_trtllm.mooncake_wheel import INSTALL, wheel_version

__all__ = ["report"]

_LEAST_BYTES = 1 << 30
_IMPORT_TIMEOUT_S = 60
_LOOPBACK_TIMEOUT_S = 5.0


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
    checks.add(Check("package", True, f"mooncake-trtllm {__version__}"))
    checks.add(Check("numpy", True, importlib.metadata.version("numpy")))
    checks.add(_importable("native_module", "mooncake_trtllm._native"))
    checks.add(_importable("connector", "mooncake.tensorrt_llm"))
    checks.add(_runtime())
    checks.add(_wheel(backend))
    checks.add(Check("cpu", True, _cpu()))
    checks.add(_memory())
    checks.add(_loopback())
    checks.add(_settings())


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
    if version is None:
        needed = backend == "mooncake"
        return Check("mooncake_wheel", not needed, "not installed", INSTALL, USAGE)
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


def _cpu() -> str:
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
            model = names[0] if names else model
    except OSError:
        pass
    return f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores usable, {model}"


def _loopback() -> Check:
    """A connection to this machine itself: what a private store and its clients talk over."""
    remedy = "bring the interface lo up (ip link set lo up), and allow connections to 127.0.0.1"
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(_LOOPBACK_TIMEOUT_S)
            address = server.getsockname()
            with socket.create_connection(address, _LOOPBACK_TIMEOUT_S) as client:
                peer, _ = server.accept()
                with peer:
                    client.sendall(b"!")
                    peer.settimeout(_LOOPBACK_TIMEOUT_S)
                    arrived = peer.recv(1) == b"!"
    except OSError as error:
        return Check("network", False, f"no connection over 127.0.0.1: {error}", remedy)
    name = socket.gethostname()
    try:
        where = f"{name} is {socket.gethostbyname(name)}"
    except OSError as error:
        where = (
            f"the host name {name} does not resolve ({error.strerror or error}), which the "
            "connector does not need: it tells the address by which it reaches the master. Where "
            f"other programs are to be told the name, add it to /etc/hosts: 127.0.1.1 {name}"
        )
    return Check("network", arrived, f"127.0.0.1 connects; {where}", remedy)


def _settings() -> Check:
    """The values in force; where one is not the default, with where it comes from."""
    from mooncake_trtllm.errors import KvConnectorConfigError

    try:
        from mooncake_trtllm._set_by import described
        from mooncake_trtllm.settings import load_settings

        settings = load_settings()
    except KvConnectorConfigError as error:
        return Check("settings", False, str(error), "correct the setting that is named", USAGE)
    except ImportError as error:
        return Check("settings", False, f"not read: {error}", "what mends native_module")
    values = [
        f"{name}={value}" + ("" if source == "default" else f" ({source})")
        for name, value, source in described(settings.core)
    ]
    return Check("settings", True, ", ".join(values))
