"""Python programs of tests in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).parents[1]
LIMIT_S = 120


def clean_environment(**changes: str) -> dict[str, str]:
    """The environment without settings, importing what this process imports."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MC_", "MOONCAKE_", "PYTHON", "OMPI_", "PMI", "SLURM_"))
    }
    path = os.pathsep.join(dict.fromkeys([str(TESTS), *filter(None, sys.path)]))
    return {**kept, "PYTHONPATH": path, "MC_BACKEND": "memory", **changes}


def run_python(
    code: str, *arguments: str, environment: Mapping[str, str] | None = None, status: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run code to its end, which must have this status."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=dict(environment) if environment is not None else clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@contextmanager
def conversation(code: str, *, environment: Mapping[str, str]) -> Iterator[Callable[[str], str]]:
    """A program that answers each line of its input with a line of its output, until it ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    said, heard = process.stdin, process.stdout

    def ask(question: str) -> str:
        said.write(question + "\n")
        said.flush()
        answer = heard.readline()
        assert answer, f"no answer to {question!r}, status {process.poll()}"
        return answer.strip()

    try:
        yield ask
        said.close()
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
        heard.close()
