"""Requests and step reports of every runtime version, brought into one form.

Attributes are read by name, with a default for what a version lacks, and at once: the runtime
may hand out an object that is valid during the call only. Content that is not identified beyond
doubt makes the request bypass the connector in both directions; it never falls back to the keys of
plain text.
"""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "Bypass",
    "RequestContent",
    "StepReport",
    "is_text",
    "read_request",
    "read_request_id",
    "read_slots",
    "read_slots_by_group",
    "read_step",
]

_MAX_ID = (1 << 64) - 1
_MIN_SALT = -(1 << 63)
_DIGEST_WORDS = 8

# What shows that KV depends on more than tokens, adapters and digests of media.
_UNIDENTIFIED = ("prompt_embedding_table", "prompt_embeddings", "inputs_embeds", "input_embeddings")
_ENCODER = ("encoder_tokens", "encoder_input_features", "encoder_input_token_ids")
_LORA_DATA = ("lora_weights", "lora_config")


class Bypass(Exception):  # noqa: N818 - an outcome, not an error
    """The request is neither looked up nor saved; the message says why."""

    reason = "content"
    """Which of _stats.BYPASSES counts it."""


@dataclass(frozen=True)
class RequestContent:
    """What a request is, as far as its KV is concerned."""

    request_id: int
    tokens: Sequence[int]
    prompt_tokens: int
    salt: str | int | None = None
    lora: str | None = None
    media: list[tuple[bytes, int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class StepReport:
    """One request of an executed batch."""

    request_id: int
    is_new: bool
    new_tokens: Sequence[int]
    new_slots: Sequence[int]
    computed_tokens: int
    scheduled_tokens: int


def read_request_id(request: Any) -> int:
    """Return the id. Raises Bypass if it cannot be one."""
    value = getattr(request, "request_id", None)
    request_id = _integer(value)
    if request_id is None or not 0 <= request_id <= _MAX_ID:
        raise Bypass(f"request_id={value!r} is not an unsigned 64-bit integer")
    return request_id


def read_request(request: Any, lora_ids: Mapping[int, str]) -> RequestContent:
    """Return the content of a request, or raise Bypass. `lora_ids`: adapters known by content."""
    request_id = read_request_id(request)
    _refuse_unidentified(request)
    tokens = request.get_tokens(0)
    if not isinstance(tokens, list):
        tokens = [operator.index(token) for token in tokens]
    stated = _value(request, "prompt_len")
    prompt_tokens = len(tokens) if stated is None else _integer(stated)
    if prompt_tokens is None or not 0 < prompt_tokens <= len(tokens):
        raise Bypass(f"prompt_len={stated!r} does not fit its {len(tokens)} tokens")
    return RequestContent(
        request_id=request_id,
        tokens=tokens,
        prompt_tokens=prompt_tokens,
        salt=_salt(request),
        lora=_lora(request, lora_ids),
        media=_media(request, prompt_tokens),
    )


def _refuse_unidentified(request: Any) -> None:
    for name in ("is_dummy_request", "is_dummy"):
        if _value(request, name):
            raise Bypass("it is a dummy")
    # A property of the binding's request, a method of the Python one.
    if _value(request, "is_generation_only_request"):
        raise Bypass("it is generation-only and brings its KV along")
    for name in _UNIDENTIFIED:
        if _present(_value(request, name)):
            raise Bypass(f"its {name} is content without a digest")
    encoder = {
        *_ENCODER,
        *(n for n in getattr(request, "__dict__", ()) if n.startswith("encoder_")),
    }
    for name in sorted(encoder):
        if _present(_value(request, name)):
            raise Bypass(f"its KV depends on an encoder's input ({name})")


def _salt(request: Any) -> str | int | None:
    salt = _value(request, "cache_salt")
    if salt is not None:
        if not isinstance(salt, str):
            raise Bypass(f"cache_salt is a {type(salt).__name__}, not a string")
        return salt
    stated = _value(request, "cache_salt_id")
    if stated is None:
        return None
    number = _integer(stated)
    if number is None or not _MIN_SALT <= number <= _MAX_ID:
        raise Bypass(f"cache_salt_id={stated!r} is not a 64-bit integer")
    return number


def _lora(request: Any, lora_ids: Mapping[int, str]) -> str | None:
    task = _value(request, "lora_task_id")
    if task is None:
        for name in _LORA_DATA:
            if _present(_value(request, name)):
                raise Bypass(f"it has {name} but no lora_task_id")
        return None
    number = _integer(task)
    identity = None if number is None else lora_ids.get(number)
    if identity is None:
        raise Bypass(f"lora_task_id={task!r} is not named in the file MC_LORA_IDS")
    return identity


def _media(request: Any, prompt_tokens: int) -> list[tuple[bytes, int, int]]:
    parts = [
        _value(request, name)
        for name in ("multimodal_hashes", "multimodal_positions", "multimodal_lengths")
    ]
    if not any(_present(part) for part in parts):
        if _present(_value(request, "multimodal_embedding")):
            raise Bypass("its multimodal_embedding has no digests (multimodal_hashes)")
        return []
    try:
        hashes, positions, lengths = (list(part) for part in parts)
    except TypeError:
        raise Bypass("multimodal hashes, positions and lengths are not all given") from None
    if not len(hashes) == len(positions) == len(lengths):
        raise Bypass(
            f"{len(hashes)} multimodal hashes, {len(positions)} positions and {len(lengths)} "
            "lengths do not belong together"
        )
    items = []
    end = 0
    for words, stated_start, stated_length in zip(hashes, positions, lengths, strict=True):
        start, length = _integer(stated_start), _integer(stated_length)
        if start is None or length is None or length <= 0:
            raise Bypass(
                f"a media item at {stated_start!r} with length {stated_length!r} is no span of "
                "tokens"
            )
        if start < end or start + length > prompt_tokens:
            raise Bypass(
                f"a media item at [{start}, {start + length}) overlaps another one, is out of order"
                f" or leaves the prompt of {prompt_tokens} tokens"
            )
        end = start + length
        items.append((_digest(words), start, length))
    return items


def _digest(words: Any) -> bytes:
    """Return 32 bytes from the runtime's eight signed words, most significant byte first."""
    try:
        values = [_integer(word) for word in words]
        if len(values) == _DIGEST_WORDS and None not in values:
            return struct.pack(">8i", *values)
    except (TypeError, struct.error):
        pass
    raise Bypass("a multimodal hash is not eight signed 32-bit integers")


def read_slots(block_ids: Any) -> list[int]:
    """Return page indices as a list; None is no page."""
    return [] if block_ids is None else [operator.index(slot) for slot in block_ids]


def read_slots_by_group(by_group: Any) -> list[int]:
    """Return the pages of the only layer group, whether given as a list or as a mapping.

    Raises ValueError if there are several groups, which need more than this version can do.
    """
    groups = list(by_group.values() if isinstance(by_group, Mapping) else by_group or ())
    if len(groups) > 1:
        raise ValueError(f"{len(groups)} layer groups, but this version supports one")
    return read_slots(groups[0]) if groups else []


def read_step(scheduler_output: Any) -> tuple[list[StepReport], list[int]]:
    """Return the reports of a batch, and the ids of requests whose report cannot be used.

    What such a request computes is not known any more, so it must be forgotten: deltas that follow
    would be taken for other positions.
    """
    reports: list[StepReport] = []
    unusable: list[int] = []
    for name, is_new in (("new_requests", True), ("cached_requests", False)):
        for data in getattr(scheduler_output, name, None) or ():
            request_id = _integer(getattr(data, "request_id", None))
            if request_id is None or not 0 <= request_id <= _MAX_ID:
                continue  # never promised anything
            report = _read_report(data, request_id, is_new)
            if report is None:
                unusable.append(request_id)
            else:
                reports.append(report)
    return reports, unusable


def _read_report(data: Any, request_id: int, is_new: bool) -> StepReport | None:
    tokens = getattr(data, "new_tokens", None)
    computed = _count(getattr(data, "computed_position", None))
    scheduled = _count(getattr(data, "num_scheduled_tokens", None))
    try:
        slots = read_slots(getattr(data, "new_block_ids", None))
        if not slots:
            slots = read_slots_by_group(getattr(data, "new_block_ids_by_layer_group", None))
    except (TypeError, ValueError):
        slots = None
    if computed is None or scheduled is None or slots is None:
        return None
    return StepReport(
        request_id=request_id,
        is_new=is_new,
        new_tokens=[] if tokens is None else tokens,
        new_slots=slots,
        computed_tokens=computed,
        scheduled_tokens=scheduled,
    )


def _count(value: Any) -> int | None:
    number = 0 if value is None else _integer(value)
    return number if number is not None and number >= 0 else None


def _value(request: Any, name: str) -> Any:
    """Return an attribute, called if it is a method. Absent: None."""
    value = getattr(request, name, None)
    return value() if callable(value) and not isinstance(value, type) else value


def _present(value: Any) -> bool:
    """Whether an optional content field says that there is something."""
    if value is None or value is False:
        return False
    if isinstance(value, (int, float)):
        return value != 0
    try:
        return len(value) > 0
    except TypeError:
        return True


def _integer(value: Any) -> int | None:
    """Return an integer of any integer type; None for anything else, truth values included."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    return operator.index(value)


def is_text(value: str) -> bool:
    """Whether a string can be written as UTF-8, as everything that enters a key must be."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def lora_ids_from(entries: Iterable[tuple[Any, Any]]) -> dict[int, str]:
    """Return adapter numbers by content identity. Raises ValueError naming the bad entry."""
    result: dict[int, str] = {}
    for key, identity in entries:
        if not isinstance(key, str) or not re.fullmatch(r"-?[0-9]{1,19}", key):
            raise ValueError(f"adapter {key!r} is not a number")
        if not isinstance(identity, str) or not identity.strip() or not is_text(identity):
            raise ValueError(f"adapter {key!r} has the identity {identity!r}, not a text")
        if int(key) in result:
            raise ValueError(f"adapter {key!r} stands there twice")
        result[int(key)] = identity
    return result
