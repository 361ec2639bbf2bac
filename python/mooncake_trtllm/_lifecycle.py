"""The end of things: dropped references, exit of the interpreter, and forks.

There is no shutdown callback. A connector's resources are released when the last reference to it
goes, at the latest by an exit handler, before the interpreter finalises. In a forked child nothing
is released, since the threads of the parent do not exist there: the resources are given up.
"""

from __future__ import annotations

import atexit
import itertools
import os
import weakref
from typing import Protocol

__all__ = ["ForkAware", "Releasable", "release_with", "track"]


class ForkAware(Protocol):
    """What a forked child must not touch."""

    def give_up(self) -> None:
        """Forget everything without touching it. The object then behaves as new, or as released."""


class Releasable(ForkAware, Protocol):
    """What is released once."""

    def release(self) -> None:
        """End threads, registrations and references, within a bounded time. Idempotent."""


_tracked: weakref.WeakSet[ForkAware] = weakref.WeakSet()
_releasable: weakref.WeakValueDictionary[int, Releasable] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def track(resources: ForkAware) -> None:
    """Give `resources` up in forked children."""
    _tracked.add(resources)


def release_with(owner: object, resources: Releasable) -> weakref.finalize[[], object]:
    """Release `resources` when `owner` goes or the interpreter exits; newest first."""
    track(resources)
    _releasable[next(_numbers)] = resources
    finalizer = weakref.finalize(owner, resources.release)
    # Exit handlers run newest first. Ours has to come before the one of a store's client, which
    # ends all calls and was registered when the store was opened: so it is registered anew.
    finalizer.atexit = False
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)
    return finalizer


def _at_exit() -> None:
    for _, resources in sorted(_releasable.items(), key=lambda item: -item[0]):
        resources.release()


def _after_fork_in_child() -> None:
    for resources in list(_tracked):
        resources.give_up()


os.register_at_fork(after_in_child=_after_fork_in_child)
