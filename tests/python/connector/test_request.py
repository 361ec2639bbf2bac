"""Requests of every runtime version: one form, or a bypass in both directions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.ids import readable

from mooncake_trtllm.request import Bypass, read_request, read_slots_by_group, read_step

TOKENS = list(range(100, 140))
HASH = [1, -1, 2**31 - 1, -(2**31), 0, 5, 6, 7]
DIGEST = (
    b"\x00\x00\x00\x01\xff\xff\xff\xff\x7f\xff\xff\xff\x80\x00\x00\x00"
    b"\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x06\x00\x00\x00\x07"
)


def request(**attributes: Any) -> SimpleNamespace:
    values = {"request_id": 5, "prompt_len": 40, "get_tokens": lambda _beam: TOKENS, **attributes}
    return SimpleNamespace(**values)


def media(**changes: Any) -> dict[str, Any]:
    return {
        "multimodal_hashes": [HASH],
        "multimodal_positions": [3],
        "multimodal_lengths": [9],
        **changes,
    }


def test_plain() -> None:
    content = read_request(request(), {})
    assert (content.request_id, content.tokens, content.prompt_tokens) == (5, TOKENS, 40)
    assert (content.salt, content.lora, content.media) == (None, None, [])


def test_a_request_that_lacks_what_older_versions_lack() -> None:
    bare = SimpleNamespace(request_id=1, get_tokens=lambda _beam: TOKENS)
    assert read_request(bare, {}).prompt_tokens == 40


@pytest.mark.parametrize(
    ("attributes", "salt"),
    [
        ({"cache_salt": "a"}, "a"),
        ({"cache_salt": ""}, ""),
        ({"cache_salt": None}, None),
        ({"cache_salt_id": 5}, 5),
        ({"cache_salt_id": 0}, 0),
        ({"cache_salt_id": 2**64 - 1}, 2**64 - 1),
        ({"cache_salt": "5", "cache_salt_id": 9}, "5"),
    ],
)
def test_salts_keep_their_type(attributes: dict[str, Any], salt: object) -> None:
    found = read_request(request(**attributes), {}).salt
    assert (type(found), found) == (type(salt), salt)


def test_adapters_known_by_content() -> None:
    assert read_request(request(lora_task_id=3), {3: "sha256:aa"}).lora == "sha256:aa"


def test_media() -> None:
    assert read_request(request(**media()), {}).media == [(DIGEST, 3, 9)]
    assert read_request(request(**media(multimodal_embedding=object())), {}).media
    empty = media(multimodal_hashes=[], multimodal_positions=[], multimodal_lengths=[])
    assert read_request(request(**empty), {}).media == []


@pytest.mark.parametrize("value", [False, lambda: False], ids=["property", "method"])
def test_generation_only_is_a_property_or_a_method(value: Any) -> None:
    assert read_request(request(is_generation_only_request=value), {})
    with pytest.raises(Bypass):
        read_request(
            request(is_generation_only_request=(lambda: True) if callable(value) else True), {}
        )


@pytest.mark.parametrize(
    "attributes",
    [
        {"is_dummy_request": True},
        {"prompt_embedding_table": object()},
        {"prompt_embedding_table": [1]},
        {"multimodal_embedding": object()},
        {"encoder_tokens": [1, 2]},
        {"encoder_input_features": object()},
        {"encoder_anything_new": [1]},
        {"lora_task_id": 3},
        {"lora_task_id": 0},
        {"lora_task_id": "3"},
        {"lora_weights": object()},
        {"cache_salt": 5},
        {"cache_salt": b"x"},
        {"cache_salt_id": "5"},
        {"cache_salt_id": True},
        {"cache_salt_id": 2**64},
        {"prompt_len": 41},
        {"prompt_len": 0},
        {"prompt_len": "40"},
        {"request_id": -1},
        {"request_id": 2**64},
        {"request_id": None},
        {"request_id": True},
        {"get_tokens": lambda _beam: []},
        media(multimodal_hashes=None),
        media(multimodal_hashes=[]),
        media(multimodal_positions=None),
        media(multimodal_lengths=None),
        media(multimodal_lengths=[9, 9]),
        media(multimodal_lengths=[0]),
        media(multimodal_lengths=[-1]),
        media(multimodal_positions=[-1]),
        media(multimodal_positions=[32]),  # leaves the prompt
        media(multimodal_positions=["3"]),
        media(multimodal_hashes=[HASH[:7]]),
        media(multimodal_hashes=[[2**31, *HASH[1:]]]),
        media(multimodal_hashes=[["x", *HASH[1:]]]),
        media(multimodal_hashes=[None]),
        media(multimodal_hashes=[5]),
        {
            "multimodal_hashes": [HASH, HASH],
            "multimodal_positions": [3, 11],
            "multimodal_lengths": [9, 9],
        },  # overlap
        {
            "multimodal_hashes": [HASH, HASH],
            "multimodal_positions": [20, 3],
            "multimodal_lengths": [5, 5],
        },  # out of order
    ],
    ids=lambda attributes: "-".join(f"{k}={readable(v)}"[:40] for k, v in attributes.items()),
)
def test_what_is_not_identified_bypasses(attributes: dict[str, Any]) -> None:
    with pytest.raises(Bypass):
        read_request(request(**attributes), {7: "sha256:aa"})


class Report(SimpleNamespace):
    """A RequestData; fields that a version lacks are left out."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(
            **{
                "request_id": 1,
                "new_tokens": [1, 2],
                "new_block_ids": [4],
                "computed_position": 0,
                "num_scheduled_tokens": 2,
                **fields,
            }
        )


def output(*new: Report, cached: tuple[Report, ...] = ()) -> SimpleNamespace:
    return SimpleNamespace(new_requests=list(new), cached_requests=list(cached))


def test_steps_of_the_oldest_version() -> None:
    reports, unusable = read_step(output(Report(), cached=(Report(request_id=2),)))
    assert [(r.request_id, r.is_new, r.new_slots) for r in reports] == [
        (1, True, [4]),
        (2, False, [4]),
    ]
    assert unusable == []


@pytest.mark.parametrize("by_group", [[[4, -1]], {0: [4, -1]}, ([4, -1],)])
def test_steps_with_one_layer_group(by_group: Any) -> None:
    report = Report(new_block_ids=[], new_block_ids_by_layer_group=by_group)
    assert read_step(output(report))[0][0].new_slots == [4, -1]


def test_steps_with_newer_fields_and_empty_lists() -> None:
    report = Report(
        new_tokens=None,
        new_block_ids=None,
        new_block_ids_by_layer_group={},
        priorities=None,
        block_hashes=[],
        cache_salt=None,
    )
    (found,), _ = read_step(output(report))
    assert (found.new_tokens, found.new_slots) == ([], [])


@pytest.mark.parametrize(
    "fields",
    [
        {"new_block_ids": ["x"]},
        {"new_block_ids": 5},
        {"new_block_ids": [], "new_block_ids_by_layer_group": [[1], [2]]},
        {"computed_position": -1},
        {"num_scheduled_tokens": "3"},
    ],
)
def test_a_report_that_cannot_be_used_is_named(fields: dict[str, Any]) -> None:
    reports, unusable = read_step(output(Report(**fields), Report(request_id=2)))
    assert [report.request_id for report in reports] == [2]
    assert unusable == [1]


@pytest.mark.parametrize("scheduler_output", [None, SimpleNamespace(), output()])
def test_empty_steps(scheduler_output: Any) -> None:
    assert read_step(scheduler_output) == ([], [])


def test_several_layer_groups_are_refused() -> None:
    assert read_slots_by_group([]) == []
    assert read_slots_by_group(None) == []
    with pytest.raises(ValueError, match="2 layer groups"):
        read_slots_by_group({0: [1], 1: [2]})
