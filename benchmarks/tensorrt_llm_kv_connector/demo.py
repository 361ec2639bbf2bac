#!/usr/bin/env python3
"""A CTX and a GEN instance reuse KV blocks through a real Mooncake Store of their own.

    demo.py --json

The same as `mooncake-trtllm demo`, with the same options; see --help.
"""

import sys

from mooncake_trtllm.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["demo", *sys.argv[1:]]))
