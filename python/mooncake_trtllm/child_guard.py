"""Child processes that cannot outlive the process that started them.

A child is started through a small launcher that asks the kernel to kill it when its parent dies
(`PR_SET_PDEATHSIG`, which survives `execv`), then becomes the wanted program. The pid is that of
the program. This holds even when the parent is killed with SIGKILL and runs no clean-up of its own.

The kernel's notion of "parent" is the *thread* that started the child: start children from the main
thread, or from a thread that lives as long as they do.

Children get a session of their own, so that Ctrl-C in a terminal reaches the parent alone, which
then stops them in the right order.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

__all__ = ["said", "spawn", "stop"]

# prctl(PR_SET_PDEATHSIG, SIGKILL); a parent that is gone by now will send no signal.
_LAUNCHER = """
import ctypes, os, sys
parent = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(1, 9, 0, 0, 0) != 0 or os.getppid() != parent:
    sys.exit(120)
os.execv(sys.argv[2], sys.argv[2:])
"""


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    output: IO[bytes] | int | None = None,
    errors_apart: bool = False,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Starts `argv` (its first entry an absolute path) as a guarded child in a session of its own.

    `output` receives both standard output and standard error (default: the parent's stderr); with
    `errors_apart` standard output alone, and standard error stays the parent's.
    """
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
    return subprocess.Popen(
        [*launcher, *argv],
        env=None if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        stdout=2 if output is None else output,
        stderr=None if output is None or errors_apart else subprocess.STDOUT,
        pass_fds=tuple(pass_fds),
        start_new_session=True,
    )


def said(output: IO[bytes], limit: int = 2000) -> str:
    """The end of what a child wrote to `output`, a file that it may still be writing to."""
    size = os.fstat(output.fileno()).st_size
    # At an offset of its own: the child shares the file's position with us.
    text = os.pread(output.fileno(), limit, max(0, size - limit))
    return text.decode(errors="replace").strip()


def stop(process: subprocess.Popen[bytes], *, grace_s: float = 5.0) -> int:
    """SIGTERM, then SIGKILL after `grace_s`; returns the exit status. Harmless on a dead child."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()
