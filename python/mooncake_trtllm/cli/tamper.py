"""A program of its own that alters one stored object: `demo` runs it to play the vandal.

    python -m mooncake_trtllm.cli.tamper MASTER_ADDRESS KEY

It reads the object with a raw client of the store, flips one bit in the middle of the payload,
removes the object by force, stores the altered bytes under the same key, and reads them back. It
knows nothing of our format: to it the object is a row of bytes.
"""

from __future__ import annotations

import sys

import numpy as np

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Exit status 0 when the store now holds the altered bytes."""
    master, key = arguments
    from mooncake.store import MooncakeDistributedStore

    client = MooncakeDistributedStore()
    host = master.rsplit(":", 1)[0]
    _check("setup", client.setup(host, "P2PHANDSHAKE", 0, 0, "tcp", "", master), 0)
    try:
        size = client.get_size(key)
        if size <= 0:
            raise RuntimeError(f"get_size({key}) returned {size}")
        before = np.zeros(size, dtype=np.uint8)
        after = np.zeros(size, dtype=np.uint8)
        _check("get_into", client.get_into(key, before.ctypes.data, size), size)
        altered = before.copy()
        altered[size // 2] ^= 0x10
        _check("remove", client.remove(key, True), 0)
        _check("put_from", client.put_from(key, altered.ctypes.data, size), 0)
        _check("get_into", client.get_into(key, after.ctypes.data, size), size)
        if not np.array_equal(after, altered):
            raise RuntimeError(f"the store did not take the altered bytes of {key}")
    finally:
        client.close()
    return 0


def _check(call: str, result: int, expected: int) -> None:
    if result != expected:
        raise RuntimeError(f"{call} returned {result}, expected {expected}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
