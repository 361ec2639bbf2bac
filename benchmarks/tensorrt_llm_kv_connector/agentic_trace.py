#!/usr/bin/env python3
"""Hit ratio of the agentic workload (12 agents, 12 turns), or of a FAST25-format trace.

    agentic_trace.py --backend mooncake --json

The same as `mooncake-trtllm trace`, with the same options; see --help.
"""

import sys

from mooncake_trtllm.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["trace", *sys.argv[1:]]))
