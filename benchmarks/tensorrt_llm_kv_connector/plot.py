#!/usr/bin/env python3
"""Figures (PNG and SVG) and one HTML report of what the other scripts printed with --json.

    plot.py matrix.json trace.json --out report

The same as `mooncake-trtllm plot`, with the same options; see --help.
"""

import sys

from mooncake_trtllm.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["plot", *sys.argv[1:]]))
