"""What start-up says about how a model was identified."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from mooncake_trtllm import _native
from mooncake_trtllm._args import read_engine_args
from mooncake_trtllm.identity import engine_identity


@pytest.mark.parametrize("evidence", ["sampled digest", "full digest"])
def test_sampled_weights_are_told_with_the_remedy(
    evidence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = SimpleNamespace(content="digest", tokenizer="", evidence=evidence)
    monkeypatch.setattr(_native, "identify_model", lambda *_: found)
    with caplog.at_level(logging.WARNING, "mooncake_trtllm"):
        engine_identity(
            read_engine_args(SimpleNamespace(model=str(tmp_path))),
            model_revision=None,
            key_epoch=0,
        )
    assert ("MC_MODEL_REVISION" in caplog.text) == (evidence == "sampled digest")


def test_names_of_evidence_are_the_cores(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"weights")
    assert _native.identify_model(str(tmp_path), None).evidence == "full digest"
