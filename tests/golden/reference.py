"""Keys of stored blocks, computed a second time: the worked example of docs/format/key.md.

This file shares no code with the library. It is written to be read next to the page, byte by byte,
and the vectors beside it (*.json) come from it. The C++ and the Python tests compare the library
with those files; another test compares the files with this program, so that neither can change
alone.

    python reference.py          compare the files with this program
    python reference.py --write  write them anew (only with a new key format version)
"""

from __future__ import annotations

import hashlib
import hmac
import json
import pathlib
import struct
import sys
from dataclasses import dataclass, field
from typing import Any

KEY_FORMAT_VERSION = 1

INTEGER, TEXT, INTEGER_LIST = 1, 2, 3
SALT_ABSENT, SALT_TEXT, SALT_INTEGER, SALT_NEGATIVE_INTEGER = 0, 1, 2, 3


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def i64(value: int) -> bytes:
    return struct.pack("<q", value)


def blob(value: bytes) -> bytes:
    return u32(len(value)) + value


@dataclass(frozen=True)
class Media:
    digest: bytes
    start: int
    length: int


@dataclass(frozen=True)
class Request:
    tokens: tuple[int, ...]
    tokens_per_block: int
    salt: str | int | None = None
    lora: str | None = None
    secret: bytes = b""
    media: tuple[Media, ...] = field(default_factory=tuple)


def keyspace_message(fields: dict[str, int | str | list[int]]) -> bytes:
    """`fields` in the order of the page, without key_format_version, which always comes first."""
    message = b"kvc1spce"
    for name, value in {"key_format_version": KEY_FORMAT_VERSION, **fields}.items():
        message += blob(name.encode())
        if isinstance(value, int):
            message += bytes([INTEGER]) + u64(value)
        elif isinstance(value, str):
            message += bytes([TEXT]) + blob(value.encode())
        else:
            message += bytes([INTEGER_LIST]) + u64(len(value)) + b"".join(map(u64, value))
    return message


def keyspace_fingerprint(fields: dict[str, int | str | list[int]]) -> bytes:
    return hashlib.sha256(keyspace_message(fields)).digest()[:16]


def salt_bytes(salt: str | int | None) -> bytes:
    if salt is None:
        return bytes([SALT_ABSENT])
    if isinstance(salt, str):
        return bytes([SALT_TEXT]) + blob(salt.encode())
    if salt < 0:
        return bytes([SALT_NEGATIVE_INTEGER]) + i64(salt)
    return bytes([SALT_INTEGER]) + u64(salt)


def root_hash(request: Request) -> bytes:
    scope = salt_bytes(request.salt)
    scope += b"\0" if request.lora is None else b"\1" + blob(request.lora.encode())
    if request.secret:
        return hmac.new(request.secret, b"kvc1hmac" + scope, hashlib.sha256).digest()
    return hashlib.sha256(b"kvc1root" + scope).digest()


def block_message(previous: bytes, request: Request, index: int) -> bytes:
    size = request.tokens_per_block
    first = index * size
    touching = [
        item
        for item in request.media
        if item.start < first + size and item.start + item.length > first
    ]
    message = b"kvc1blck" + previous + u32(size)
    message += b"".join(u32(token) for token in request.tokens[first : first + size])
    message += u32(len(touching))
    for item in touching:
        message += blob(item.digest) + i64(item.start - first) + u64(item.length)
    return message


def block_hashes(request: Request) -> list[bytes]:
    hashes = []
    previous = root_hash(request)
    for index in range(len(request.tokens) // request.tokens_per_block):
        previous = hashlib.sha256(block_message(previous, request, index)).digest()
        hashes.append(previous)
    return hashes


def shard_key(keyspace: bytes, block: bytes, rank: int) -> str:
    return f"kvc1/{keyspace.hex()}/{block.hex()}/r{rank}"


def ready_key(keyspace: bytes, block: bytes, rank: int) -> str:
    return f"{shard_key(keyspace, block, rank)}/ready"


def layer_key(keyspace: bytes, block: bytes, rank: int, layer: int) -> str:
    return f"kvc1/{keyspace.hex()}/{block.hex()}/layers/r{rank}/{layer}"


def layers_ready_key(keyspace: bytes, block: bytes, rank: int) -> str:
    return f"kvc1/{keyspace.hex()}/{block.hex()}/layers/r{rank}/ready"


def layers_manifest_key(keyspace: bytes, block: bytes) -> str:
    return f"kvc1/{keyspace.hex()}/{block.hex()}/layers/manifest"


def manifest_key(keyspace: bytes, block: bytes) -> str:
    return f"kvc1/{keyspace.hex()}/{block.hex()}/manifest"


# --- what a model is ----------------------------------------------------------------------------

CONFIGURATION_NAMES = ("config.json", "hf_quant_config.json", "params.json")  # those used below
TOKENIZER_NAMES = ("tokenizer.json", "tokenizer_config.json")  # those used below
WEIGHT_ENDINGS = (".safetensors", ".bin")  # those used below
Files = dict[str, bytes]


def file_list(files: Files, digests: dict[str, bytes]) -> bytes:
    """The files that `digests` names, in the order of names: name, size, digest."""
    return b"".join(
        blob(name.encode()) + u64(len(files[name])) + blob(digests[name])
        for name in sorted(digests)
    )


def full_digests(files: Files, names: list[str]) -> dict[str, bytes]:
    return {name: hashlib.sha256(files[name]).digest() for name in names}


def safetensors_samples(data: bytes) -> bytes:
    header_bytes = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + header_bytes])
    samples = data[: 8 + header_bytes]
    body = data[8 + header_bytes :]
    ranges = [tensor["data_offsets"] for name, tensor in header.items() if name != "__metadata__"]
    for first, end in sorted(ranges):
        tensor = body[first:end]
        if len(tensor) <= 4096:
            samples += tensor
            continue
        last = len(tensor) - 1024
        for place in (0, last // 3, last // 3 * 2, last):
            samples += tensor[place : place + 1024]
    return samples


def other_samples(data: bytes) -> bytes:
    mib = 1 << 20
    if len(data) <= 2 * mib:
        return data
    samples = data[:mib]
    for place in range(4 * mib, len(data) - mib, 4 * mib):
        samples += data[place : place + 4096]
    return samples + data[-mib:]


def sampled_digests(files: Files, names: list[str]) -> dict[str, bytes]:
    digests = {}
    for name in names:
        data = files[name]
        sample = safetensors_samples if name.endswith(".safetensors") else other_samples
        digests[name] = hashlib.sha256(u64(len(data)) + sample(data)).digest()
    return digests


def model_identity(files: Files, kind: str, revision: str = "") -> tuple[str, str]:
    """(content, tokenizer). `kind`: revision (stated), files (all bytes) or sampled."""
    weights = [name for name in files if name.endswith(WEIGHT_ENDINGS)]
    configuration = [name for name in files if name in CONFIGURATION_NAMES]
    tokenizer = [name for name in files if name in TOKENIZER_NAMES]
    message = b"kvc1modl" + blob(kind.encode())
    if kind == "revision":
        message += blob(revision.encode())
    else:
        digests = full_digests if kind == "files" else sampled_digests
        message += blob(b"weights") + file_list(files, digests(files, weights))
    message += blob(b"configuration")
    message += file_list(files, full_digests(files, configuration))
    content = f"{kind}:{hashlib.sha256(message).hexdigest()}"
    if not tokenizer:
        return content, ""
    message = b"kvc1modl" + blob(b"tokenizer")
    message += file_list(files, full_digests(files, tokenizer))
    return content, f"sha256:{hashlib.sha256(message).hexdigest()}"


# --- the vectors ------------------------------------------------------------------------------

BASE_FIELDS: dict[str, int | str | list[int]] = {
    "key_epoch": 0,
    "model_content": "revision:example",
    "tokenizer": "sha256:" + "ab" * 32,
    "engine_layout": "paged-1",
    "kv_dtype": "bfloat16",
    "kv_quantization": "",
    "attention_backend": "flash",
    "tokens_per_block": 32,
    "layers": [0, 1, 2],
    "bytes_per_page": 98304,
    "kv_factor": 2,
    "element_bytes": 2,
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 1,
    "context_parallel_size": 1,
    "expert_parallel_size": 1,
    "layer_group": 0,
    "window_tokens": 0,
}

FIELD_CHANGES: dict[str, int | str | list[int]] = {
    "key_epoch": 2**64 - 1,
    "model_content": "",
    "tokenizer": "",
    "engine_layout": "größer",
    "kv_dtype": "fp8_e4m3",
    "kv_quantization": "fp8_e4m3",
    "attention_backend": "flash2",
    "tokens_per_block": 64,
    "layers": [0, 1, 2, 4294967295],
    "bytes_per_page": 2**40,
    "kv_factor": 1,
    "element_bytes": 1,
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 2,
    "context_parallel_size": 2,
    "expert_parallel_size": 2,
    "layer_group": 1,
    "window_tokens": 4096,
}


def tokens_of(count: int, seed: int) -> tuple[int, ...]:
    """Token ids without a pattern, the largest possible one among them."""
    tokens = []
    state = seed
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        tokens.append(state >> 47)
    if tokens:
        tokens[-1] = 2**31 - 1
    return tuple(tokens)


def media_digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def example_requests() -> dict[str, Request]:
    text = tokens_of(100, 1)
    first, second = media_digest("first"), media_digest("second")
    return {
        "plain": Request(text, 32),
        "one token per block": Request(text[:5], 1),
        "odd block size": Request(text, 7),
        "too short": Request(text[:31], 32),
        "no tokens": Request((), 32),
        "zero tokens": Request((0,) * 64, 32),
        "empty salt": Request(text, 32, salt=""),
        "text salt": Request(text, 32, salt="5"),
        "integer salt": Request(text, 32, salt=5),
        "integer salt zero": Request(text, 32, salt=0),
        "negative salt": Request(text, 32, salt=-5),
        "smallest salt": Request(text, 32, salt=-(2**63)),
        "largest salt": Request(text, 32, salt=2**64 - 1),
        "salt beyond ascii": Request(text, 32, salt="Mandant Ü\u4e2d"),
        "lora": Request(text, 32, lora="sha256:" + "cd" * 32),
        "empty lora": Request(text, 32, lora=""),
        "salt and lora": Request(text, 32, salt="tenant", lora="adapter"),
        "secret": Request(text, 32, secret=b"a secret of the deployment"),
        "long secret and salt": Request(text, 32, salt="tenant", secret=bytes(range(200))),
        "media inside a block": Request(text, 32, media=(Media(first, 40, 10),)),
        "media at an edge": Request(text, 32, media=(Media(first, 32, 32),)),
        "media straddling": Request(text, 32, media=(Media(first, 30, 40),)),
        "media one later": Request(text, 32, media=(Media(first, 31, 40),)),
        "two media": Request(text, 32, media=(Media(first, 3, 4), Media(second, 7, 60))),
        "media short digest": Request(text, 32, media=(Media(first[:16], 5, 1),)),
        "example of the page": Request(
            tuple(range(100, 106)), 4, salt="s", media=(Media(bytes(range(16)), 3, 2),)
        ),
        "everything": Request(
            text, 16, salt=7, lora="adapter", secret=b"k", media=(Media(second, 20, 50),)
        ),
    }


def keyspace_vectors() -> list[dict[str, Any]]:
    cases = {"base": dict(BASE_FIELDS)}
    for name, value in FIELD_CHANGES.items():
        cases[f"other {name}"] = {**BASE_FIELDS, name: value}
    cases["no layers"] = {**BASE_FIELDS, "layers": []}
    return [
        {"name": name, "fields": fields, "fingerprint": keyspace_fingerprint(fields).hex()}
        for name, fields in cases.items()
    ]


def block_hash_vectors() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "tokens_per_block": request.tokens_per_block,
            "cache_salt": request.salt,
            "lora": request.lora,
            "deployment_secret_hex": request.secret.hex(),
            "media": [
                {"digest": item.digest.hex(), "start": item.start, "length": item.length}
                for item in request.media
            ],
            "tokens": list(request.tokens),
            "blocks": [block.hex() for block in block_hashes(request)],
        }
        for name, request in example_requests().items()
    ]


def object_key_vectors() -> list[dict[str, Any]]:
    keyspace = keyspace_fingerprint(BASE_FIELDS)
    block = block_hashes(example_requests()["plain"])[0]
    return [
        {
            "keyspace": keyspace.hex(),
            "block": block.hex(),
            "rank": rank,
            "shard": shard_key(keyspace, block, rank),
            "ready": ready_key(keyspace, block, rank),
            "manifest": manifest_key(keyspace, block),
            "layers": [layer_key(keyspace, block, rank, layer) for layer in (0, 1, 79)],
            "layers_ready": layers_ready_key(keyspace, block, rank),
            "layers_manifest": layers_manifest_key(keyspace, block),
        }
        for rank in (0, 1, 15, 4294967295)
    ]


def pattern(count: int, seed: int) -> bytes:
    """Bytes without a short period."""
    return bytes((i * i * 31 + i * 7 + seed) % 251 for i in range(count))


def safetensors(tensors: dict[str, tuple[int, int]]) -> bytes:
    """A file with `tensors`: name -> (bytes, seed)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, (count, seed) in tensors.items():
        offsets = [len(body), len(body) + count]
        header[name] = {"dtype": "U8", "shape": [count], "data_offsets": offsets}
        body += pattern(count, seed)
    text = json.dumps(header).encode()
    return u64(len(text)) + text + body


def example_models() -> dict[str, Files]:
    shard = safetensors({"a": (100, 1), "b": (4096, 2), "c": (4097, 3), "d": (6000, 4)})
    return {
        "one shard": {"model.safetensors": shard, "config.json": b'{"hidden_size": 8}'},
        "with tokenizer": {
            "model-2.safetensors": safetensors({"y": (10, 8)}),
            "model-1.safetensors": safetensors({"x": (5000, 9)}),
            "config.json": b"{}",
            "tokenizer.json": b'{"version": 1}',
            "tokenizer_config.json": b"{}",
            "README.md": b"not part of it",
        },
        "another format": {"pytorch_model.bin": pattern(3000, 5), "params.json": b"{}"},
    }


def model_vectors() -> list[dict[str, Any]]:
    revisions = {"revision": "r 1", "files": "", "sampled": ""}
    return [
        {
            "name": name,
            "files": {file: data.hex() for file, data in files.items()},
            "identities": [
                dict(
                    zip(
                        ("kind", "stated_revision", "content", "tokenizer"),
                        (kind, revision, *model_identity(files, kind, revision)),
                        strict=True,
                    )
                )
                for kind, revision in revisions.items()
            ],
        }
        for name, files in example_models().items()
    ]


def golden_files() -> dict[str, str]:
    vectors = {
        "model.json": model_vectors(),
        "keyspace.json": keyspace_vectors(),
        "block_hash.json": block_hash_vectors(),
        "object_key.json": object_key_vectors(),
    }
    return {
        name: "[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n"
        for name, cases in vectors.items()
    }


def main(arguments: list[str]) -> int:
    folder = pathlib.Path(__file__).parent
    failed = False
    for name, text in golden_files().items():
        path = folder / name
        if arguments == ["--write"]:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{path} differs from what reference.py computes", file=sys.stderr)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
