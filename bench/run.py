"""Measures the project against raw baselines of the same run; writes build/bench/results.json.

bench/run.py --out build/bench/results.json            everything (needs Mooncake's wheel)
bench/run.py --smoke --out results.json                hermetic parts with tiny parameters
bench/run.py --only mooncake --pairs 31 --out x.json   one part, more samples

What each entry means is in bench/README.md; the format is documented in docs/source/outputs.md.
Exit status: 0 measured, 1 a required bar is broken, 2 wrong usage, 3 the store cannot be reached.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.main import main

if __name__ == "__main__":
    sys.exit(main())
