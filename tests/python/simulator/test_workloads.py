"""Workloads are what they claim to be, and the exact cache counts as it should."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mooncake_trtllm.simulator.workloads import (
    IdealCache,
    TraceFormatError,
    agentic_workload,
    read_fast25,
)

SAMPLE = Path(__file__).parents[2] / "data" / "fast25_sample.jsonl"


def test_the_agentic_workload_has_its_known_figures() -> None:
    workload = agentic_workload()
    assert len(workload) == 144
    assert sum((n - 1) // 32 for n in workload.prompt_lengths) == 19584
    cache = IdealCache(32)
    hits = [cache.serve(tokens) for tokens in workload]
    assert (sum(hits), hits[0]) == (17248, 0)
    assert sum(cache.serve(tokens) for tokens in workload) == 19584


def test_agents_share_the_system_prompt_and_nothing_else() -> None:
    prompts = list(agentic_workload())
    assert len(prompts[0]) == 1024 + 512 + 7
    assert len(prompts[143]) == 1024 + 512 * 12 + 7
    assert np.array_equal(prompts[0][:1024], prompts[1][:1024])
    assert not np.array_equal(prompts[0][1024:], prompts[1][1024:])
    # The next turn of an agent begins with all of the turn before.
    assert np.array_equal(prompts[12][: len(prompts[0])], prompts[0])


def test_equal_ids_are_equal_blocks_and_different_ids_differ() -> None:
    workload = read_fast25(SAMPLE)
    entries = [json.loads(line) for line in SAMPLE.read_text().splitlines()]
    assert len(workload) == len(entries) == 24
    blocks: dict[int, bytes] = {}
    for entry, tokens in zip(entries, workload, strict=True):
        assert len(tokens) == entry["input_length"]
        for index, hash_id in enumerate(entry["hash_ids"][:-1]):
            block = tokens[index * 512 : (index + 1) * 512].tobytes()
            assert blocks.setdefault(hash_id, block) == block
    assert len(set(blocks.values())) == len(blocks)


def test_a_partial_last_block_is_the_start_of_its_own_id(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [(512 + 100, [3, 9]), (1024, [3, 9]), (1024, [9, 3])]
    trace.write_text("\n".join(line(n, ids) for n, ids in lines))
    short, long, swapped = read_fast25(trace)
    assert np.array_equal(short, long[:612])
    assert np.array_equal(swapped[:512], long[512:])


def test_the_exact_cache_stops_at_the_first_gap() -> None:
    cache = IdealCache(4)
    tokens = np.arange(17, dtype=np.int32)
    assert cache.serve(tokens[:9]) == 0
    assert cache.blocks == 2
    # Of 17 tokens 4 blocks are looked up, of 16 only 3: one token is always computed.
    assert cache.serve(tokens) == 2
    assert cache.serve(tokens) == 4
    assert cache.serve(tokens[:16]) == 3
    other = tokens.copy()
    other[5] = 99
    assert cache.serve(other) == 1


def line(length: Any, ids: Any, **more: Any) -> str:
    entry = {"timestamp": 1, "input_length": length, "output_length": 1, "hash_ids": ids}
    return json.dumps({**entry, **more})


GOOD = line(600, [0, 1])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("[1, 2]", "not a JSON object"),
        ("[" * 100_000, "not JSON"),
        (line(600, [0, 1]).replace("600", "6" * 5000), "not JSON"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}', "'hash_ids' is missing"),
        (line("600", [0, 1]), "'input_length' must be an integer"),
        (line(True, [0]), "'input_length' must be an integer"),
        (line(0, [0]), "'input_length' must be an integer of at least 1"),
        (line(600, []), "not empty"),
        (line(600, [0, "1"]), "a hash id must be an integer"),
        (line(600, [0, -1]), "a hash id must be an integer of 0"),
        (line(600, [0, 1 << 60]), "a hash id must be an integer of 0"),
        (line(512, [0, 1]), "does not fit 2 blocks"),
        (line(1025, [0, 1]), "does not fit 2 blocks"),
        (line(600, [0, 1], output_length=-1), "'output_length' must be"),
        (line(600, [0, 1], timestamp="now"), "'timestamp' must be"),
    ],
)
def test_a_malformed_line_is_named_with_its_reason(text: str, reason: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(f"{GOOD}\n\n{text}\n")
    with pytest.raises(TraceFormatError) as caught:
        read_fast25(trace)
    message = str(caught.value)
    assert message.startswith(f"{trace}, line 3: ")
    assert reason in message
    assert "Remedy:" in message


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(b'{"a": "\xff\xfe"}')
    with pytest.raises(TraceFormatError, match="line 1"):
        read_fast25(trace)


def test_an_empty_and_a_missing_file_are_named(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    with pytest.raises(TraceFormatError, match="cannot be read"):
        read_fast25(trace)
    trace.write_text("\n")
    with pytest.raises(TraceFormatError, match="holds no request"):
        read_fast25(trace)
