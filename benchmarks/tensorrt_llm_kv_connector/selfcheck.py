#!/usr/bin/env python3
"""Is this machine able to run the connector, and is KV bit-exact and isolated on it?

    selfcheck.py --backend memory --json

The same as `mooncake-trtllm selfcheck`, with the same options; see --help.
"""

import sys

from mooncake_trtllm.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["selfcheck", *sys.argv[1:]]))
