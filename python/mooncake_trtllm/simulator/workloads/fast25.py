"""Traces in the format published with the Mooncake paper (FAST'25).

One JSON object a line: `timestamp`, `input_length`, `output_length`, `hash_ids` (one id for each
512-token block of the prompt, the last possibly partial; equal ids are equal blocks). The traces
hold no text: the tokens of a block are derived from its id, those of a partial last block are the
first ones of its own id.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mooncake_trtllm.simulator.mixing import mix_into
from mooncake_trtllm.simulator.workloads.workload import Tokens, Workload

__all__ = ["BLOCK_TOKENS", "TraceFormatError", "read_fast25"]

BLOCK_TOKENS = 512
_VOCABULARY_BITS = 17
_LARGEST_ID = (1 << 53) - 1
_SHOWN = 80
_REMEDY = (
    "one JSON object a line, for example "
    '{"timestamp": 0, "input_length": 600, "output_length": 10, "hash_ids": [0, 1]}'
)


class TraceFormatError(ValueError):
    """A trace that cannot be read: names file, line, value, reason and remedy."""

    def __init__(self, path: Path, line: int, value: object, reason: str) -> None:
        shown = value if isinstance(value, str) else json.dumps(value, default=str)
        if len(shown) > _SHOWN:
            shown = shown[:_SHOWN] + "..."
        super().__init__(f"{path}, line {line}: {shown}: {reason}. Remedy: {_REMEDY}")


class TraceFileError(TraceFormatError):
    """A trace without requests, or that cannot be opened: names file, reason and remedy."""

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        ValueError.__init__(self, f"{path}: {reason}. Remedy: {remedy}")


def read_fast25(path: Path | str) -> Workload:
    """Reads and checks a whole trace. Raises TraceFormatError."""
    file = Path(path)
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise TraceFileError(
            file, f"cannot be read ({error.strerror})", "name a file that this user can read"
        ) from error
    lengths: list[int] = []
    hash_ids: list[npt.NDArray[np.uint64]] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            length, ids = _parse(file, number, line)
            lengths.append(length)
            hash_ids.append(np.array(ids, dtype=np.uint64))
    if not lengths:
        raise TraceFileError(file, "the file holds no request", _REMEDY)

    def make(index: int) -> Tokens:
        return _tokens(hash_ids[index], lengths[index])

    return Workload(file.name, BLOCK_TOKENS, tuple(lengths), make)


def _tokens(ids: npt.NDArray[np.uint64], length: int) -> Tokens:
    words = (ids[:, np.newaxis] * np.uint64(BLOCK_TOKENS)) + np.arange(
        BLOCK_TOKENS, dtype=np.uint64
    )
    flat = words.reshape(-1)[:length]
    flat += np.uint64(1)  # Zero is a fixed point of the mixing.
    mix_into(flat, np.empty_like(flat))
    tokens: Tokens = (flat >> np.uint64(64 - _VOCABULARY_BITS)).astype(np.int32)
    return tokens


def _parse(path: Path, number: int, line: bytes) -> tuple[int, list[int]]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:  # also numbers too long to be read
        text = line.decode(errors="replace")
        raise TraceFormatError(path, number, text, f"not JSON ({error})") from error
    if not isinstance(entry, dict):
        raise TraceFormatError(path, number, entry, "not a JSON object")
    for name in ("timestamp", "input_length", "output_length", "hash_ids"):
        if name not in entry:
            raise TraceFormatError(path, number, entry, f"'{name}' is missing")
    length, ids = entry["input_length"], entry["hash_ids"]
    for name, least in (("input_length", 1), ("output_length", 0), ("timestamp", 0)):
        if not _is_count(entry[name]) or entry[name] < least:
            raise TraceFormatError(
                path, number, entry[name], f"'{name}' must be an integer of at least {least}"
            )
    if not isinstance(ids, list) or not ids:
        raise TraceFormatError(
            path, number, ids, "'hash_ids' must be a list of integers, not empty"
        )
    for hash_id in ids:
        if not _is_count(hash_id) or not 0 <= hash_id <= _LARGEST_ID:
            raise TraceFormatError(
                path, number, hash_id, f"a hash id must be an integer of 0 to {_LARGEST_ID}"
            )
    if not (len(ids) - 1) * BLOCK_TOKENS < length <= len(ids) * BLOCK_TOKENS:
        raise TraceFormatError(
            path,
            number,
            length,
            f"'input_length' does not fit {len(ids)} blocks of {BLOCK_TOKENS} tokens",
        )
    return length, ids


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
