#!/usr/bin/env python3
"""Modeled time to first token: KV loaded by blocks against KV loaded layer by layer.

    timeline.py --load-gb-per-s 2.5 --json

The same as `mooncake-trtllm timeline`, with the same options; see --help.
"""

import sys

from mooncake_trtllm.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["timeline", *sys.argv[1:]]))
