"""Parts that are compiled: each is a program that prints its samples."""

from __future__ import annotations

import json
import statistics
import subprocess
from pathlib import Path
from typing import Any

from bench.paired import Entry
from bench.sizes import Sizes, UsageError

__all__ = ["identity", "layers", "requery"]

IDENTITY_LIMIT = 1.5
# Loads and computing of equal length overlap in full at 0.5.
LAYERS_LIMIT = 0.65
REQUERY_LIMIT_US = 60.0


def identity(bin_dir: Path, sizes: Sizes) -> dict[str, Entry]:
    """Names of blocks, over SHA-256."""
    measured = _run(
        bin_dir / "identity_ratio",
        f"--samples={sizes.identity_samples}",
        f"--blocks={sizes.identity_blocks}",
    )
    key_ns, sha_ns = measured["key_ns"], measured["sha256_ns"]
    entry = Entry(
        value=statistics.median(measured["samples"]),
        op="<=",
        limit=IDENTITY_LIMIT,
        samples=measured["samples"],
        baseline={"name": "SHA-256, reused EVP context", "value": sha_ns, "unit": "ns"},
        note=(
            f"{key_ns} ns against {sha_ns} ns for a {measured['tokens_per_block']}-token block: "
            f"append to the chain and format the shard's key, over SHA-256 of the same "
            f"{measured['message_bytes']} bytes, in a prompt of {measured['blocks']} blocks"
        ),
        aim=False,
        digest=measured["digest"],
    )
    return {"identity_vs_sha256": entry}


def layers(bin_dir: Path, sizes: Sizes) -> dict[str, Entry]:
    """Loads layer by layer, over whole ones."""
    measured = _run(
        bin_dir / "layer_overlap",
        f"--samples={sizes.layer_samples}",
        f"--layers={sizes.layers}",
    )
    entry = Entry(
        value=statistics.median(measured["samples"]),
        op="<=",
        limit=LAYERS_LIMIT,
        samples=measured["samples"],
        baseline={"name": "whole blocks", "value": measured["block_ms"], "unit": "ms"},
        note=(
            f"{measured['layer_ms']:.1f} ms against {measured['block_ms']:.1f} ms from the begin "
            f"of the load to the end of the last of {measured['layers']} layers, measured with "
            f"real threads: {measured['blocks']} blocks, a store that takes 1 ms for a layer of "
            "all of them, 1 ms of computing a layer (neither takes a core)"
        ),
        aim=False,
        digest=measured["digest"],
    )
    return {"layer_vs_block_ttft": entry}


def requery(bin_dir: Path, sizes: Sizes) -> dict[str, Entry]:
    """Names of a conversation that grew."""
    measured = _run(
        bin_dir / "requery",
        f"--samples={sizes.identity_samples}",
        f"--blocks={sizes.query_blocks}",
    )
    entry = Entry(
        value=statistics.median(measured["samples"]),
        unit="us",
        op="<=",
        limit=REQUERY_LIMIT_US,
        samples=measured["samples"],
        baseline={"name": "memcmp", "value": measured["memcmp_us"], "unit": "us"},
        note=(
            f"In the core: names of a prompt of {measured['tokens']} tokens that grew by a block "
            "since the last request of the conversation; all tokens known are compared, one block "
            "is hashed"
        ),
        aim=False,
        digest=measured["digest"],
    )
    return {"requery_grow_us": entry}


def _run(program: Path, *arguments: str) -> dict[str, Any]:
    if not program.is_file():
        raise UsageError(
            f"{program}: not there; remedy: cmake --workflow --preset release, or --bin-dir"
        )
    done = subprocess.run([program, *arguments], check=True, stdout=subprocess.PIPE)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured
