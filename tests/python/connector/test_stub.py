"""The committed stub of the native module is what the module says today."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import mooncake_trtllm

STUB = Path(__file__).parents[3] / "python" / "mooncake_trtllm" / "_native.pyi"


def statements(text: str) -> list[str]:
    """Definitions in order, imports apart and sorted: formatters may move those."""
    body = ast.parse(text).body
    imports = [ast.unparse(n) for n in body if isinstance(n, ast.Import | ast.ImportFrom)]
    return [*sorted(imports), *(ast.unparse(n) for n in body if ast.unparse(n) not in imports)]


def test_the_stub_is_current(tmp_path: Path) -> None:
    package = Path(mooncake_trtllm.__file__).parents[1]
    fresh = tmp_path / "_native.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "mooncake_trtllm._native"]
    subprocess.run([*command, "-i", str(package), "-o", str(fresh)], check=True, timeout=120)
    assert statements(STUB.read_text()) == statements(fresh.read_text()), (
        "regenerate it: python -m nanobind.stubgen -m mooncake_trtllm._native "
        "-o python/mooncake_trtllm/_native.pyi, then ruff check --fix and ruff format"
    )
