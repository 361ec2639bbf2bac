"""Which store a run uses, and a private one where the user names none."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mooncake_trtllm._set_by import SET_FOR_THIS_RUN, described, run_sets
from mooncake_trtllm.cli.exits import UsageError
from mooncake_trtllm.cli.private_folder import PrivateFolder, private_folder
from mooncake_trtllm.errors import KvConnectorConfigError, KvConnectorStoreError
from mooncake_trtllm.local_store import LocalStore

if TYPE_CHECKING:
    # At run time where it is used: `selfcheck` tells whether this module loads at all.
    from mooncake_trtllm._native import Settings

__all__ = [
    "RunStore",
    "add_exclusive_option",
    "add_granularity",
    "add_options",
    "add_segment_option",
    "available_bytes",
    "check_fits",
    "check_still_there",
    "check_switched_on",
    "chosen_backend",
    "granularity_of",
    "open_store",
    "reach",
    "run_seed",
    "segment_bytes",
    "size_in_bytes",
    "tell_overrides",
    "users_folder",
    "users_store",
    "where_engines_store",
]

_LEAST_SEGMENT_BYTES = 256 << 20
_MEMORY_SHARE = 0.7
_FEWER_BYTES = (
    "a smaller workload, a larger --tokens-per-block, or (mooncake) --segment-bytes with fewer "
    "bytes, which costs hits"
)
_OBJECT_OVERHEAD_BYTES = 4096
_SIZE = "MOONCAKE_GLOBAL_SEGMENT_SIZE"
"""A setting whose values are written like `--segment-bytes`, and bound like it."""
_PRIVATE = "a private store"
_FULL_QUOTA, _NO_ROOM = "TENANT_QUOTA_EXCEEDED", "NO_AVAILABLE_HANDLE"
"""In messages. A Mooncake Store without any storage process says the latter, too."""
_LEASES_RUN_OUT_S = 12.0
"""Leases last 10 s. Each attempt waits a few seconds itself."""
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


def _users_settings() -> Settings:
    """Environment and file, checked as the connector does. Raises KvConnectorConfigError.

    Without a master of the user's, `mooncake` means a private store here, so MC_BACKEND=mooncake
    alone is no mistake, as it is for the connector.
    """
    from mooncake_trtllm.settings import parse_settings

    known = parse_settings(os.environ, {"MC_BACKEND": "memory"})
    named = known.has_value("MOONCAKE_MASTER") or known.has_value("MOONCAKE_CONFIG_PATH")
    return parse_settings(os.environ, {} if named else {"MOONCAKE_MASTER": _PRIVATE})


def users_store() -> str | None:
    """What of the user's settings names a Mooncake Store; None: nothing."""
    from mooncake_trtllm.settings import origin

    settings = _users_settings()
    master = settings.text("MOONCAKE_MASTER")
    return None if master == _PRIVATE else f"MOONCAKE_MASTER={master}{origin(settings)}"


def users_folder() -> str:
    """What the user's settings name for the file back end; empty: nothing."""
    return _users_settings().text("MC_FILE_PATH")


def where_engines_store() -> str:
    """Where the file back end of an engine with the user's settings keeps its blocks."""
    from mooncake_trtllm.settings import default_file_path

    return users_folder() or default_file_path()


def _users_backend(settings: Settings) -> str | None:
    sources = {name: source for name, _, source in settings.describe()}
    if sources.get("MC_BACKEND") != "default" or settings.text("MOONCAKE_MASTER") != _PRIVATE:
        return settings.text("MC_BACKEND")
    return None


def chosen_backend(option: str | None, default: str) -> str:
    """`--backend`, else what the user's settings name, else the default of the verb.

    Raises KvConnectorConfigError for a setting that the connector would refuse, whichever it is.
    """
    settings = _users_settings()
    check_switched_on(settings)
    return option or _users_backend(settings) or default


def check_switched_on(settings: Settings | None = None) -> None:
    """Raises UsageError where the user's settings leave a run nothing to show."""
    settings = settings or _users_settings()
    switch = settings.text("MC_DISABLE_FILE")
    if switch and os.path.exists(switch):
        raise UsageError(
            f"MC_DISABLE_FILE={switch}: it is there, so that the connector is off; remedy: remove "
            "it, or unset the variable for this run"
        )
    if settings.number("MC_SAVE_QUEUE_BYTES") == 0:
        raise UsageError(
            "MC_SAVE_QUEUE_BYTES=0: nothing is saved, so that nothing can be reused; remedy: unset "
            "it for this run"
        )


def tell_overrides(verb: str, env: Mapping[str, str], told: set[str] | None = None) -> None:
    """Says on standard error, once each, which of the user's settings a run replaces.

    What `showcase` has set for a verb is none of the user's.
    """
    settings = _users_settings()
    nobodys = ("default", "override", SET_FOR_THIS_RUN)
    users = {n: (v, s) for n, v, s in described(settings) if s not in nobodys}
    backend = _users_backend(settings)
    if backend is not None and "MOONCAKE_MASTER" not in run_sets():
        users.setdefault("MC_BACKEND", (backend, "MOONCAKE_MASTER"))
    for name, (value, source) in users.items():
        if env.get(name, value) != value and name not in (told or ()):
            print(f"{verb} sets {name}={env[name]}; was {value} ({source})", file=sys.stderr)
            if told is not None:
                told.add(name)


def reach(store: RunStore) -> None:
    """Connects to the store once, as the connector does: an object goes there and back.

    Raises KvConnectorConfigError or KvConnectorStoreError.
    """
    from mooncake_trtllm._stores import stores
    from mooncake_trtllm.settings import load_settings

    stores.acquire(load_settings(store.env)).release()


def check_still_there(store: RunStore) -> None:
    """After a run that lost something: whether the store has gone, or is merely full.

    One that is full of leased blocks takes no object until leases have run out; that is waited for.
    Raises what reach() does where it has gone.
    """
    give_up = time.monotonic() + _LEASES_RUN_OUT_S
    while True:
        try:
            return reach(store)
        except KvConnectorStoreError as error:
            if _FULL_QUOTA in str(error):
                return None
            if _NO_ROOM not in str(error) or time.monotonic() > give_up:
                raise


_WHICH = (
    "memory: inside this process; file: the folder that MC_FILE_PATH names, else a private one, "
    "removed after this run; mooncake: the store that MOONCAKE_MASTER or MOONCAKE_CONFIG_PATH "
    "names, else a private one on loopback, started and stopped by this run"
)


def add_options(parser: argparse.ArgumentParser, *, default: str, what: str = _WHICH) -> None:
    """`--backend`, for chosen_backend(), and `--segment-bytes`."""
    parser.add_argument(
        "--backend",
        choices=("memory", "file", "mooncake"),
        default=None,
        help=f"{what} (default: what the settings name, else {default})",
    )
    add_segment_option(parser)


def add_segment_option(parser: argparse.ArgumentParser) -> None:
    """`--segment-bytes`."""
    parser.add_argument(
        "--segment-bytes",
        type=size_in_bytes,
        default=None,
        metavar="N",
        help="size of the private store or folder, as in settings: 1073741824, 512MB, 1GiB "
        "(default: sized to the workload)",
    )


def size_in_bytes(text: str) -> int:
    """A size as settings have it."""
    from mooncake_trtllm._native import Settings

    try:
        size = Settings.parse({}, overrides={_SIZE: text, "MC_BACKEND": "memory"}).number(_SIZE)
    except KvConnectorConfigError as error:
        # Without the name of the setting, which the user did not set.
        reason = str(error).partition("): ")[2]
        raise argparse.ArgumentTypeError(f"{text!r}: {reason}") from None
    return size


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
def open_store(
    backend: str, needed_bytes: int, wanted_bytes: int | None, *, engines_folder: bool = False
) -> Iterator[RunStore]:
    """The store for a run; a private one ends with the block, after its clients.

    With `engines_folder` the file back end is the one that engines share, never a private one.
    """
    shared = where_engines_store() if engines_folder else users_folder()
    of_user = (backend == "file" and shared) or (backend == "mooncake" and users_store())
    if wanted_bytes is not None and (backend == "memory" or of_user):
        where = of_user or "the memory back end"
        print(f"--segment-bytes {wanted_bytes}: without effect on {where}", file=sys.stderr)
    if backend == "memory":
        check_fits(needed_bytes, "the memory back end")
        yield RunStore("memory", {"MC_BACKEND": "memory"})
        return
    size = needed_bytes if wanted_bytes is None else wanted_bytes
    if size < 16 << 20:
        raise UsageError(f"--segment-bytes {size}: too small; remedy: 16777216 or more")
    if backend == "file" and of_user:
        yield RunStore("file", {"MC_BACKEND": "file"})
    elif backend == "file":
        with private_folder(size, available_bytes()) as folder:
            env = {"MC_FILE_PATH": str(folder.path), "MC_FILE_MAX_BYTES": str(size)}
            yield RunStore("file", {"MC_BACKEND": "file", **env}, folder=folder)
    elif of_user:
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


def check_fits(size: int, what: str, remedy: str = _FEWER_BYTES) -> None:
    """Raises UsageError where that much memory would drive this machine to its limit."""
    available = available_bytes()
    if available is not None and size > available * _MEMORY_SHARE:
        raise UsageError(
            f"{size} bytes for {what} are too much for this machine, which has {available} bytes "
            f"available; remedy: {remedy}"
        )
