"""Builds the documentation site in build/docs/html; any warning fails.

Its tools, docs/requirements.txt, live in a virtual environment of their own in build/docs/venv.
"""

from __future__ import annotations

import subprocess
import sys

from results import ROOT

WORK = ROOT / "build" / "docs"
REQUIREMENTS = ROOT / "docs" / "requirements.txt"


def main() -> int:
    """Install what is missing, then build."""
    stamp = WORK / "installed.txt"
    python = WORK / "venv" / "bin" / "python"
    wanted = f"{sys.version}\n{REQUIREMENTS.read_text()}"
    if not (python.exists() and stamp.exists() and stamp.read_text() == wanted):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(WORK / "venv")], check=True)
        pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "-r", str(REQUIREMENTS)], check=True, stdin=subprocess.DEVNULL)
        stamp.write_text(wanted)
    build = [str(python), "-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs/source"]
    return subprocess.run([*build, "docs", str(WORK / "html")], check=False, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
