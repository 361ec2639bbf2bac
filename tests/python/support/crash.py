"""Writers of one file store are killed, again and again, and others look at what they leave.

    python tests/python/support/crash.py [--kills N] [--seed N] [--named-drafts]

Four writers at once put, read, probe and remove random objects in one folder whose limit is smaller
than the objects together. Each is killed with SIGKILL: at a step inside of a change that the seed
chooses, or from outside after so many calls that the seed chooses; a new one takes its place. What
an object holds is a function of its key, so whatever is served can be judged. A process of its own
reads every key after each round, measures the folder, and takes stock at the end.

The seed fixes what each writer does and where it is to die; how the four interleave is the
machine's. Exit status 1: something that must hold did not.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mooncake_trtllm import _native

__all__ = ["Outcome", "main", "run"]

WRITERS = 4
KEYS = 300
LARGEST = 128 << 10
LIMIT = 8 << 20
TOLERANCE = 1.05
BLOCK = 4096
KILLS_PER_LOOK = 10
ANSWER_S = 60.0


@dataclass
class Outcome:
    """What a run saw. Everything in `broken` must not have happened."""

    seed: int
    kills: int = 0
    kills_at_step: dict[str, int] = field(default_factory=dict)
    calls: int = 0
    objects_checked: int = 0
    misses: int = 0
    wrong: int = 0
    peak_bytes: int = 0
    lost_bytes: int = 0
    lost_bytes_after_stock: int = 0
    leftovers: int = 0
    seconds: float = 0.0
    broken: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Several lines for people."""
        steps = ", ".join(f"{name} {count}" for name, count in sorted(self.kills_at_step.items()))
        return (
            f"seed {self.seed}: {self.kills} kills in {self.seconds:.1f} s, {self.calls} calls; "
            f"{sum(self.kills_at_step.values())} of the kills inside of a change ({steps})\n"
            f"objects read and compared {self.objects_checked} (misses {self.misses}), partial or "
            f"wrong {self.wrong}\n"
            f"peak {self.peak_bytes} bytes of {LIMIT} ({self.peak_bytes / LIMIT:.3f}), taken by "
            f"the dead at the end {self.lost_bytes}, after taking stock "
            f"{self.lost_bytes_after_stock}, leftover files {self.leftovers}\n"
            + "".join(f"BROKEN: {text}\n" for text in self.broken)
            + ("" if self.broken else "OK\n")
        )


class Objects:
    """Keys and what belongs under them."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.content = {
            f"kvc1/crash/{number:03}/r0": draw.randbytes(draw.randint(1, LARGEST))
            for number in range(KEYS)
        }
        self.keys = list(self.content)

    def verdict(self, key: str, reaction: str, data: bytes) -> str:
        """`ok`, `miss`, or what is wrong."""
        if reaction == "miss":
            return "miss"
        if reaction != "ok":
            return f"{key}: {reaction}"
        wanted = self.content[key]
        if data == wanted:
            return "ok"
        return f"{key}: {len(data)} bytes served of {len(wanted)}, equal: {wanted.startswith(data)}"


# The writers -----------------------------------------------------------------------------------


@dataclass
class Writer:
    """A child process as its parent sees it."""

    pid: int
    said: int
    """Descriptor of what it says: `.` a call is done, `@step;` it is there, `!text;` is wrong."""
    dies_after: int | None
    """Calls, or None: it says where it wants to be killed."""
    calls: int = 0
    text: str = ""


def start_writer(
    objects: Objects, path: str, seed: int, named: bool, others: list[Writer]
) -> Writer:
    """Forks. The child does what its seed says until it is killed."""
    draw = random.Random(seed)
    step_to_die = draw.randint(1, 60) if draw.random() < 0.6 else None
    calls = draw.randint(1, 40)
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        for other in others:
            os.close(other.said)
        write(objects, path, draw, write_end, step_to_die, named)
        os._exit(1)
    os.close(write_end)
    return Writer(pid, read_end, None if step_to_die else calls)


def write(
    objects: Objects,
    path: str,
    draw: random.Random,
    out: int,
    step_to_die: int | None,
    named: bool,
) -> None:
    """The life of a child."""
    steps = 0

    def at_step(name: str) -> None:
        nonlocal steps
        steps += 1
        if steps == step_to_die:
            os.write(out, f"@{name};".encode())
            signal.pause()

    try:
        store = _testing().stepped_file_store(path, LIMIT, unnamed_files=not named, at_step=at_step)
        while True:
            problem = one_call(objects, store, draw)
            os.write(out, f"!{problem};".encode() if problem else b".")
    except BaseException as error:  # noqa: BLE001 - the parent is told of anything
        os.write(out, f"!{type(error).__name__}: {error};".encode())


def one_call(objects: Objects, store: _native.Store, draw: random.Random) -> str:
    """A random call; returns what is wrong with its answer."""
    what = draw.random()
    keys = draw.sample(objects.keys, draw.randint(1, 4))
    if what < 0.6:
        for reaction, _ in store.put([(key, objects.content[key]) for key in keys]):
            if reaction != "ok":
                return f"put: {reaction}"
        return ""
    if what < 0.85:
        for key, (reaction, data) in zip(keys, store.get(keys, LARGEST), strict=True):
            verdict = objects.verdict(key, reaction, data)
            if verdict not in ("ok", "miss"):
                return verdict
        return ""
    answers = store.exists(keys) if what < 0.95 else store.remove(keys)
    return next((f"probe: {answer}" for answer in answers if answer not in ("ok", "miss")), "")


def _testing() -> Any:
    import mooncake_trtllm._testing as testing  # type: ignore[import-not-found, unused-ignore]

    return testing


# The checker -----------------------------------------------------------------------------------


class Checker:
    """A process that never dies and has its own store on the folder."""

    def __init__(self, objects: Objects, path: str) -> None:
        self._ours, theirs = Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                check(objects, path, theirs)
            finally:  # Never back into the test that forked.
                os._exit(1)
        theirs.close()

    def ask(self, question: str) -> Any:
        """The answer, or TimeoutError: then something holds a lock."""
        self._ours.send(question)
        if not self._ours.poll(ANSWER_S):
            raise TimeoutError(f"no answer to '{question}' within {ANSWER_S:.0f} s")
        return self._ours.recv()

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def check(objects: Objects, path: str, questions: Connection) -> None:
    """Answers until it is killed."""
    store = _native.FileStore(path, LIMIT)

    def read_all() -> list[str]:
        return [objects.verdict(key, *store.get([key], LARGEST)[0]) for key in objects.keys]

    def fill() -> int:
        for key, content in objects.content.items():
            store.put([(key, content)])
        return store.stats()["store_file_bytes_used"]

    answers: dict[str, Callable[[], Any]] = {
        "read": read_all,
        "used": lambda: store.stats()["store_file_bytes_used"],
        "stock": store.take_stock,
        "fill": fill,
    }
    while True:
        questions.send(answers[questions.recv()]())


def space_taken(path: Path) -> int:
    """Of all objects and drafts that have a name, each file once."""
    sizes: dict[int, int] = {}
    for folder in path.iterdir():
        if not folder.is_dir():
            continue
        for file in folder.iterdir():
            try:
                found = file.stat()
            except FileNotFoundError:
                continue
            sizes[found.st_ino] = -(-found.st_size // BLOCK) * BLOCK
    return sum(sizes.values())


# The run ---------------------------------------------------------------------------------------


class Run:
    """One folder, its writers and its checker."""

    def __init__(self, path: Path, seed: int, named: bool) -> None:
        self.path, self.seed, self.named = path, seed, named
        self.objects = Objects(seed)
        self.outcome = Outcome(seed)
        self.started = 0
        self.writers: list[Writer] = []
        self.checker = Checker(self.objects, str(path))
        self.checker.ask("used")  # the folder is there

    def play(self, kills: int) -> None:
        """Kills so many writers."""
        for _ in range(WRITERS):
            self._start()
        while self.outcome.kills < kills:
            ready, _, _ = select.select([w.said for w in self.writers], [], [], ANSWER_S)
            if not ready:
                raise TimeoutError(f"no writer did anything for {ANSWER_S:.0f} s")
            for writer in [w for w in self.writers if w.said in ready]:
                self._listen(writer)
        while self.writers:
            self._kill(self.writers[0])

    def _start(self) -> None:
        self.started += 1
        seed = self.seed * 1_000_003 + self.started
        self.writers.append(
            start_writer(self.objects, str(self.path), seed, self.named, self.writers)
        )

    def _listen(self, writer: Writer) -> None:
        said = os.read(writer.said, 4096).decode()
        if not said:
            self.outcome.broken.append(f"a writer ended by itself: {writer.text or 'silently'}")
            self._kill(writer)
            self._start()
            return
        writer.calls += said.count(".") if "!" not in said else 0
        writer.text += said.replace(".", "") if "!" not in said else said
        for text in writer.text.split(";")[:-1]:
            if text.startswith("@"):
                steps = self.outcome.kills_at_step
                steps[text[1:]] = steps.get(text[1:], 0) + 1
            else:
                self.outcome.broken.append(f"a writer found: {text.lstrip('.!')}")
        dies = ";" in writer.text or (
            writer.dies_after is not None and writer.calls >= writer.dies_after
        )
        if dies:
            self._kill(writer)
            self._start()
            if self.outcome.kills % KILLS_PER_LOOK == 0:
                self._look()

    def _kill(self, writer: Writer) -> None:
        os.kill(writer.pid, signal.SIGKILL)
        os.waitpid(writer.pid, 0)
        os.close(writer.said)
        self.writers.remove(writer)
        self.outcome.kills += 1
        self.outcome.calls += writer.calls
        self.outcome.peak_bytes = max(self.outcome.peak_bytes, space_taken(self.path))

    def _look(self) -> None:
        for verdict in self.checker.ask("read"):
            self.outcome.objects_checked += verdict != "miss"
            self.outcome.misses += verdict == "miss"
            if verdict not in ("ok", "miss"):
                self.outcome.wrong += 1
                self.outcome.broken.append(f"read after a kill: {verdict}")

    def settle(self) -> None:
        """What is left when all writers are dead."""
        outcome = self.outcome
        self._look()
        if self.named:
            _native.FileStore(str(self.path), LIMIT).close(1.0)  # removes drafts of the dead
        outcome.lost_bytes = self.checker.ask("used") - space_taken(self.path)
        if outcome.lost_bytes < 0:
            outcome.broken.append("the record says less than what is there")
        if not self.checker.ask("stock"):
            outcome.broken.append("the dead still hold a lock")
        outcome.lost_bytes_after_stock = self.checker.ask("used") - space_taken(self.path)
        drafts = self.path / "drafts"
        outcome.leftovers = sum(1 for _ in drafts.iterdir()) if drafts.is_dir() else 0
        lawful = {"usage", "drafts", *(f"{number:02x}" for number in range(256))}
        outcome.leftovers += sum(1 for entry in self.path.iterdir() if entry.name not in lawful)
        if self.checker.ask("fill") < LIMIT * 0.9:
            outcome.broken.append("the space of the dead cannot be used again")
        for name in ("lost_bytes_after_stock", "leftovers"):
            if getattr(outcome, name):
                outcome.broken.append(f"{name} is {getattr(outcome, name)}")
        if outcome.peak_bytes > LIMIT * TOLERANCE:
            outcome.broken.append("the limit was passed by more than 5 %")

    def end(self) -> None:
        """No child survives."""
        for writer in list(self.writers):
            self._kill(writer)
        self.checker.end()


def run(path: Path, *, kills: int, seed: int, named: bool = False) -> Outcome:
    """Kills so many writers of a new store at `path`."""
    began = time.monotonic()
    one = Run(path, seed, named)
    try:
        one.play(kills)
        one.settle()
    except TimeoutError as error:
        one.outcome.broken.append(str(error))
    finally:
        one.end()
    one.outcome.seconds = time.monotonic() - began
    return one.outcome


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000_007)
    parser.add_argument("--named-drafts", action="store_true", help="as where O_TMPFILE is missing")
    parser.add_argument("--base", help="where the folder is made (default: the temporary folder)")
    options = parser.parse_args()
    base = tempfile.mkdtemp(prefix="kvc-crash-", dir=options.base)
    try:
        outcome = run(
            Path(base) / "store",
            kills=options.kills,
            seed=options.seed,
            named=options.named_drafts,
        )
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print(outcome.text(), end="", flush=True)
    return 1 if outcome.broken else 0


if __name__ == "__main__":
    sys.exit(main())
