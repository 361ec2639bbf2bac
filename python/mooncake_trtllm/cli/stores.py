"""Which store a run uses, and a private one where the user names none."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mooncake_trtllm.cli.exits import UsageError
from mooncake_trtllm.cli.private_folder import PrivateFolder, private_folder
from mooncake_trtllm.local_store import LocalStore

__all__ = [
    "RunStore",
    "add_exclusive_option",
    "add_granularity",
    "add_options",
    "add_segment_option",
    "available_bytes",
    "check_fits",
    "granularity_of",
    "open_store",
    "run_seed",
    "segment_bytes",
    "users_store",
]

_LEAST_SEGMENT_BYTES = 256 << 20
_MEMORY_SHARE = 0.7
_OBJECT_OVERHEAD_BYTES = 4096
_ROOM = 1.5
"""An object needs one contiguous range, and eviction begins at nine tenths."""


@dataclass(frozen=True)
class RunStore:
    """The store of one run."""

    backend: str
    env: Mapping[str, str]
    """How the ranks find it."""
    private: LocalStore | None = None
    """Started, and owned, by this run."""
    folder: PrivateFolder | None = None
    """Made, and owned, by this run."""

    @property
    def ours(self) -> bool:
        """Whether nobody else can store or evict in it."""
        return self.backend == "memory" or self.private is not None or self.folder is not None


def users_store() -> str | None:
    """What of the environment names a Mooncake Store of the user's; None: nothing."""
    for name in ("MOONCAKE_MASTER", "MOONCAKE_CONFIG_PATH"):
        if os.environ.get(name):
            return f"{name}={os.environ[name]}"
    return None


def add_options(parser: argparse.ArgumentParser, *, default: str | None) -> None:
    """`--backend` and `--segment-bytes`."""
    parser.add_argument(
        "--backend",
        choices=("memory", "file", "mooncake"),
        default=default,
        help="memory: inside this process; file: the folder that MC_FILE_PATH names, else a "
        "private one, removed after this run; mooncake: the store that MOONCAKE_MASTER or "
        "MOONCAKE_CONFIG_PATH names, else a private one on loopback, started and stopped by this "
        f"run (default: {default or 'mooncake where its wheel or a store is found, else file'})",
    )
    add_segment_option(parser)


def add_segment_option(parser: argparse.ArgumentParser) -> None:
    """`--segment-bytes`."""
    parser.add_argument(
        "--segment-bytes",
        type=int,
        default=None,
        metavar="N",
        help="size of the private store or folder (default: sized to the workload)",
    )


def add_exclusive_option(parser: argparse.ArgumentParser) -> None:
    """For a store of the user's that nobody else uses at this time."""
    parser.add_argument(
        "--exclusive",
        action="store_true",
        help="nobody else uses the store meanwhile: a hit less than an exact unlimited cache has "
        "is an error, as it always is on a private store",
    )


def run_seed(folder: Path | str) -> int:
    """A number that differs from run to run, taken from the name of its temporary folder."""
    return int.from_bytes(Path(folder).name.encode()[-7:], "big")


def add_granularity(parser: argparse.ArgumentParser) -> None:
    """`--layer-granularity`."""
    parser.add_argument(
        "--layer-granularity",
        action="store_true",
        help="store each layer of a block as an object of its own, as MC_LAYER_GRANULARITY=1 does",
    )


def granularity_of(options: argparse.Namespace) -> str:
    """What the options of a verb ask for."""
    return "layer" if options.layer_granularity else "block"


def segment_bytes(blocks: int, block_bytes: int, objects_per_block: int) -> int:
    """Memory for so many distinct blocks."""
    per_block = block_bytes + objects_per_block * _OBJECT_OVERHEAD_BYTES
    return max(int(blocks * per_block * _ROOM), _LEAST_SEGMENT_BYTES)


@contextlib.contextmanager
def open_store(backend: str, needed_bytes: int, wanted_bytes: int | None) -> Iterator[RunStore]:
    """The store for a run; a private one ends with the block, after its clients."""
    if backend == "memory":
        check_fits(needed_bytes, "the memory back end")
        yield RunStore("memory", {"MC_BACKEND": "memory"})
        return
    size = needed_bytes if wanted_bytes is None else wanted_bytes
    if size < 16 << 20:
        raise UsageError(f"--segment-bytes {size}: too small; remedy: 16777216 or more")
    if backend == "file" and os.environ.get("MC_FILE_PATH"):
        yield RunStore("file", {"MC_BACKEND": "file"})
    elif backend == "file":
        with private_folder(size, available_bytes()) as folder:
            env = {"MC_FILE_PATH": str(folder.path), "MC_FILE_MAX_BYTES": str(size)}
            yield RunStore("file", {"MC_BACKEND": "file", **env}, folder=folder)
    elif users_store() is not None:
        yield RunStore("mooncake", {"MC_BACKEND": "mooncake"})
    else:
        check_fits(size, "the private store")
        with LocalStore(segment_bytes=size) as store:
            yield RunStore(
                "mooncake", {"MC_BACKEND": "mooncake", **store.client_environment()}, store
            )


def available_bytes() -> int | None:
    """Memory that can still be had on this machine, or None where it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def check_fits(size: int, what: str) -> None:
    """Raises UsageError where that much memory would drive this machine to its limit."""
    available = available_bytes()
    if available is not None and size > available * _MEMORY_SHARE:
        raise UsageError(
            f"{size} bytes for {what} are too much for this machine, which has {available} bytes "
            "available; remedy: a smaller workload, a larger --tokens-per-block, or (mooncake) "
            "--segment-bytes with fewer bytes, which costs hits"
        )
