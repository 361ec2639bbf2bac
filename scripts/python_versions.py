"""Tests the wheel on every CPython from 3.10 to 3.13 that this machine has.

For each version: build a wheel in a tools environment, install it with numpy and nothing else into
a bare one, import both packages there, and run the golden-vector tests against the bare
environment. The core is compiled once, by scripts/setup, and linked into every wheel. Results go
to build/results/python-<version>.xml.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from results import RESULTS, ROOT, write_cases

WORK = ROOT / "build" / "py"
CORE_PACKAGE = ROOT / "build" / "core" / "lib" / "cmake" / "kvc"
GOLDEN_TESTS = "tests/python/test_golden.py"
LIMIT_S = 900

PROBE = """
import os, platform, sys, sysconfig
import ensurepip, venv
assert platform.python_implementation() == "CPython"
assert os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")), "no headers"
print("%d.%d %s" % (*sys.version_info[:2], sys.executable))
"""

IMPORTS = """
import importlib.util
import sys
for name in ("torch", "tensorrt_llm", "mooncake.store"):
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    assert found is None, name + " is installed: this environment is not bare"
before = set(sys.modules)
import mooncake_trtllm
import mooncake.tensorrt_llm
assert mooncake.tensorrt_llm.make_kv_connector_config is not None
allowed = {"numpy", "mooncake_trtllm", "mooncake"}
foreign = {
    name.partition(".")[0]
    for name, module in list(sys.modules.items())
    if name not in before and "site-packages" in (getattr(module, "__file__", None) or "")
} - allowed
assert not foreign, "imported besides numpy: %s" % sorted(foreign)
"""


class StepError(Exception):
    """A step failed; the message holds the end of its output."""


def run(command: list[str], **environment: str) -> str:
    """Run one command and return its output; raise StepError if it fails or hangs."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | environment
    try:
        done = subprocess.run(
            command,
            check=False,
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StepError(str(error)) from error
    output = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        raise StepError(f"{command[0]} {command[1]} {command[2]}: {output[-6000:]}")
    return output


def find_interpreters() -> dict[str, str]:
    """Return version -> interpreter for every usable one; name those that are not."""
    roots = [Path(os.environ.get("PYENV_ROOT", "")), Path.home() / ".pyenv"]
    found: dict[str, str] = {}
    for minor in range(10, 14):
        name = f"python3.{minor}"
        on_path = [str(Path(folder) / name) for folder in os.get_exec_path()]
        pyenv = [str(p) for root in roots for p in sorted(root.glob(f"versions/*/bin/{name}"))]
        base = [sys.executable] if sys.version_info[:2] == (3, minor) else []
        problems = []
        for candidate in [*on_path, *pyenv, *base]:
            if not os.access(candidate, os.X_OK):
                continue
            try:
                version, _, executable = run([candidate, "-I", "-c", PROBE]).strip().partition(" ")
                found[version] = executable
                break
            except StepError as error:
                problems.append(f"   not usable: {candidate}: {str(error).splitlines()[-1]}")
        else:
            print("\n".join(problems or [f"   no CPython 3.{minor} here"]), flush=True)
    return found


def pinned(*names: str) -> list[str]:
    """Return the requirements of scripts/pip-packages.txt for these packages."""
    text = (ROOT / "scripts" / "pip-packages.txt").read_text()
    lines = {name: re.search(rf"^{name}==\S+$", text, re.MULTILINE) for name in names}
    return [match.group() if match else name for name, match in lines.items()]


def environment(folder: Path, interpreter: str, packages: list[str]) -> Path:
    """Make a virtual environment that holds exactly `packages`, or keep a fitting one."""
    stamp = folder / ".packages"
    wanted = "\n".join([interpreter, *packages])
    python = folder / "bin" / "python"
    if not (stamp.exists() and stamp.read_text() == wanted and python.exists()):
        shutil.rmtree(folder, ignore_errors=True)
        run([interpreter, "-m", "venv", str(folder)])
        run([str(python), "-m", "pip", "install", "--disable-pip-version-check", "-q", *packages])
        stamp.write_text(wanted)
    return python


def build_wheel(tools: Path, version: str) -> Path:
    """Build the wheel for one version against the core that scripts/setup has compiled."""
    wheels = WORK / version / "wheel"
    shutil.rmtree(wheels, ignore_errors=True)
    settings = [
        f"build-dir={WORK / version / 'cmake'}",
        "cmake.define.KVC_PREBUILT=ON",
        # What is tested is that it works, not how fast: unoptimised it compiles in half the time.
        "cmake.define.CMAKE_CXX_FLAGS_RELEASE=-O0",
        f"cmake.define.kvc_DIR={CORE_PACKAGE}",
    ]
    options = ["--no-build-isolation", "--no-deps", "--disable-pip-version-check", "-q"]
    run(
        [str(tools), "-m", "pip", "wheel", *options, "-w", str(wheels)]
        + [f"--config-settings={setting}" for setting in settings]
        + ["."]
    )
    return next(wheels.glob("*.whl"))


def check_version(version: str, interpreter: str) -> dict[str, str]:
    """Run all steps for one version; return step -> failure message, empty for a pass."""
    cases: dict[str, str] = {}
    folder = WORK / version
    step = "build_wheel"
    try:
        tools_packages = pinned("nanobind", "scikit-build-core", "pytest")
        tools = environment(folder / "tools", interpreter, tools_packages)
        wheel = build_wheel(tools, version)
        cases[step] = ""
        step = "install_with_numpy_only"
        bare = environment(folder / "bare", interpreter, pinned("numpy"))
        pip = [str(bare), "-m", "pip", "install", "--disable-pip-version-check", "-q"]
        run([*pip, "--no-deps", "--force-reinstall", str(wheel)])
        run([str(bare), "-m", "pip", "check"])
        cases[step] = ""
        step = "imports"
        run([str(bare), "-I", "-c", IMPORTS])
        cases[step] = ""
        step = "golden_vectors"
        site = folder / "bare" / "lib" / f"python{version}" / "site-packages"
        results = RESULTS / f"python-{version}-golden.xml"
        pytest = [str(tools), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        run([*pytest, f"--junitxml={results}", GOLDEN_TESTS], PYTHONPATH=str(site))
        cases[step] = ""
    except StepError as error:
        cases[step] = str(error)
    return cases


def main() -> int:
    """Check every version found; at least the one that runs this script must be among them."""
    interpreters = find_interpreters()
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if own not in interpreters:
        print(f"no usable interpreter of version {own}, which .venv is made with", flush=True)
        return 1
    failures = 0
    with ThreadPoolExecutor(max_workers=2) as pool:
        all_cases = list(pool.map(check_version, interpreters.keys(), interpreters.values()))
    for (version, interpreter), cases in zip(interpreters.items(), all_cases, strict=True):
        write_cases(RESULTS / f"python-{version}.xml", f"python {version}", cases)
        for step, message in cases.items():
            failures += bool(message)
            if message:
                print(f"   {step}: {message}", flush=True)
        outcome = "FAILED" if any(cases.values()) else "ok"
        print(f"   CPython {version} ({interpreter}): {outcome}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
