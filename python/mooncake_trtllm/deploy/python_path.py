"""The import path of this process, for its children."""

from __future__ import annotations

import os
import sys

__all__ = ["python_path"]


def python_path() -> str:
    """What PYTHONPATH must be, wherever a child is started."""
    return os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
