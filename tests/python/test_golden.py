"""The golden vectors of keys, from Python: the same files that the C++ tests read.

This file also runs on every Python version, with numpy as the only other package.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mooncake_trtllm import _native

GOLDEN = Path(__file__).parents[1] / "golden"
HASH_SEEDS = ("", "0", "1", "4242", "random")


def cases(name: str) -> list[Any]:
    """The vectors of one file, as pytest parameters."""
    found = json.loads((GOLDEN / name).read_text(encoding="utf-8"))
    return [pytest.param(case, id=case.get("name", case.get("shard", ""))) for case in found]


def chain_of(case: dict[str, Any]) -> _native.BlockChain:
    """The chain of a vector, its tokens appended in uneven parts."""
    chain = _native.BlockChain(
        case["tokens_per_block"],
        cache_salt=case["cache_salt"],
        lora=case["lora"],
        media=[(bytes.fromhex(m["digest"]), m["start"], m["length"]) for m in case["media"]],
        deployment_secret=bytes.fromhex(case["deployment_secret_hex"]),
    )
    tokens = case["tokens"]
    parts = [0, len(tokens) // 3, len(tokens) // 3 + 1, len(tokens)]
    for start, stop in itertools.pairwise(parts):
        chain.append(tokens[start:stop])
    return chain


@pytest.mark.parametrize("case", cases("block_hash.json"))
def test_block_hashes(case: dict[str, Any]) -> None:
    assert [name.hex() for name in chain_of(case).blocks()] == case["blocks"]


def test_block_hashes_of_all_vectors_differ() -> None:
    """Each vector changes one thing, and so no block of one is a block of another.

    Exceptions are the ones that are meant: text before the first media item is plain text.
    """
    vectors = json.loads((GOLDEN / "block_hash.json").read_text(encoding="utf-8"))
    last = [case["blocks"][-1] for case in vectors if case["blocks"]]
    assert len(set(last)) == len(last)


@pytest.mark.parametrize("case", cases("keyspace.json"))
def test_keyspace_fingerprints(case: dict[str, Any]) -> None:
    identity = _native.KeyspaceIdentity()
    for field, value in case["fields"].items():
        setattr(identity, field, value)
    assert identity.fingerprint().hex() == case["fingerprint"]


@pytest.mark.parametrize("case", cases("object_key.json"))
def test_object_keys(case: dict[str, Any]) -> None:
    keys = _native.ObjectKeys(bytes.fromhex(case["keyspace"]))
    block = bytes.fromhex(case["block"])
    assert keys.shard(block, case["rank"]) == case["shard"]
    assert keys.ready(block, case["rank"]) == case["ready"]
    assert keys.manifest(block) == case["manifest"]
    by_layer = _native.ObjectKeys(bytes.fromhex(case["keyspace"]), by_layer=True)
    assert [by_layer.layer(block, case["rank"], n) for n in (0, 1, 79)] == case["layers"]
    assert by_layer.ready(block, case["rank"]) == case["layers_ready"]
    assert by_layer.manifest(block) == case["layers_manifest"]


@pytest.mark.parametrize("case", cases("model.json"))
def test_model_identities(case: dict[str, Any], tmp_path: Path) -> None:
    for name, data in case["files"].items():
        (tmp_path / name).write_bytes(bytes.fromhex(data))
    for expected in case["identities"]:
        model = _native.identify_model(
            str(tmp_path),
            expected["stated_revision"] or None,
            full_digest_limit_bytes=0 if expected["kind"] == "sampled" else None,
        )
        assert (model.content, model.tokenizer) == (expected["content"], expected["tokenizer"])


PRINT_KEYS = """
import json, sys
from mooncake_trtllm import _native
golden = json.load(open(sys.argv[1] + "/block_hash.json"))
names = []
for case in golden:
    media = [(bytes.fromhex(m["digest"]), m["start"], m["length"]) for m in case["media"]]
    chain = _native.BlockChain(
        case["tokens_per_block"], cache_salt=case["cache_salt"], lora=case["lora"], media=media,
        deployment_secret=bytes.fromhex(case["deployment_secret_hex"]))
    chain.append(case["tokens"])
    names.append([name.hex() for name in chain.blocks()])
print(json.dumps(names))
"""


@pytest.mark.parametrize("seed", HASH_SEEDS)
def test_b13_equal_names_in_every_process(seed: str) -> None:
    """B13: no value of a process, such as Python's hash seed, enters a name."""
    import os

    environment = {name: v for name, v in os.environ.items() if name != "PYTHONHASHSEED"}
    if seed:
        environment["PYTHONHASHSEED"] = seed
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", PRINT_KEYS, str(GOLDEN)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    golden = json.loads((GOLDEN / "block_hash.json").read_text(encoding="utf-8"))
    assert json.loads(done.stdout) == [case["blocks"] for case in golden]
