"""Runs every static check; with --fix applies the two formatters instead."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from results import ROOT

CPP_FOLDERS = ("include", "src", "testing", "tests", "bindings", "bench")
BIN = Path(sys.executable).parent


def cpp_files() -> list[str]:
    """Return every C++ file of the project, relative to its root."""
    found: Iterator[Path] = (
        path
        for folder in CPP_FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".h", ".cc")
    )
    return [str(path.relative_to(ROOT)) for path in found]


def run(name: str, *commands: list[str]) -> bool:
    """Run the commands of one check; show their output only if one fails."""
    start = time.monotonic()
    for command in commands:
        done = subprocess.run(
            command,
            check=False,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if done.returncode != 0:
            sys.stdout.write(done.stdout.decode(errors="replace"))
            print(f"FAILED  {name}: {' '.join(command[:4])}", flush=True)
            return False
    print(f"ok      {name} ({time.monotonic() - start:.0f} s)", flush=True)
    return True


def fix() -> bool:
    """Apply ruff's safe fixes and both formatters."""
    ruff = str(BIN / "ruff")
    return run(
        "format",
        [ruff, "check", "--fix", "--exit-zero", "."],
        [ruff, "format", "."],
        ["clang-format", "-i", *cpp_files()],
    )


def check() -> bool:
    """Run all checks to the end; return whether all passed."""
    ruff, tidy = str(BIN / "ruff"), ["cmake", "--build", "--preset", "tidy", "--", "-k", "0"]
    outcomes = [
        run("ruff check", [ruff, "check", "."]),
        run("ruff format", [ruff, "format", "--check", "."]),
        run("mypy", [str(BIN / "mypy")]),
        run("codespell", [str(BIN / "codespell")]),
        run("clang-format", ["clang-format", "--dry-run", "-Werror", *cpp_files()]),
        run(
            "headers alone",
            ["cmake", "--build", "--preset", "dev", "--target", "all_verify_interface_header_sets"],
        ),
        run("documentation site", [sys.executable, "scripts/docs.py"]),
        run("clang and clang-tidy", ["cmake", "--preset", "tidy"], tidy),
    ]
    return all(outcomes)


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fix", action="store_true", help="apply the formatters")
    return 0 if (fix() if parser.parse_args().fix else check()) else 1


if __name__ == "__main__":
    sys.exit(main())
