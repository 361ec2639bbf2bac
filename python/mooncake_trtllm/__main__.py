"""`python -m mooncake_trtllm VERB`, the same as `mooncake-trtllm VERB`."""

from __future__ import annotations

import sys

from mooncake_trtllm.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
