"""`python -m mooncake_trtllm VERB`, the same as `mooncake-trtllm VERB`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit code."""
    try:
        # Takes a few tenths of a second, in which a Ctrl-C must not show a traceback.
        from mooncake_trtllm.cli.main import main as run

        return run(arguments)
    except KeyboardInterrupt:
        print("interrupted; nothing was started", file=sys.stderr)
        if "--json" in (sys.argv[1:] if arguments is None else arguments):
            # By hand: what prints it otherwise may not be loaded yet.
            print(
                '{"schema": "error/1", "ok": false, "failure": "interrupted; nothing was started", '
                '"exit_code": 130}'
            )
        return 130


if __name__ == "__main__":
    sys.exit(main())
