#!/usr/bin/env python3
"""The agentic workload on every back end, rank count and granularity: are the hits identical?

    run_matrix.py --backends memory,mooncake --granularity block --json

The same as `mooncake-trtllm matrix`, with the same options; see --help.
"""

import sys

from mooncake_trtllm.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["matrix", *sys.argv[1:]]))
