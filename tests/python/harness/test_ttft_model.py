"""The arithmetic of modeled figures, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from mooncake_trtllm.cli.ttft_model import Prefix, speedup


def prefix(**changes: Any) -> Prefix:
    """4 layers; 3 s to compute all, 1 s for the rest; 2 s to load by default."""
    values: dict[str, Any] = {
        "prompt_tokens": 3000,
        "reused_tokens": 2000,
        "layers": 4,
        "token_bytes_per_layer": 250,
        "prefill_tok_per_s": 1000.0,
        "load_bytes_per_s": 1e6,
    }
    return Prefix(**{**values, **changes})


def test_blocks_load_and_then_compute() -> None:
    one = prefix()
    assert (one.recompute_s, one.compute_s, one.load_s) == (3.0, 1.0, 2.0)
    assert one.block_s == 3.0


def test_layers_wait_for_loads_where_loading_is_slower() -> None:
    """Loads of 0.5 s, computes of 0.25 s: only the last compute is not hidden."""
    one = prefix()
    spans = one.layer_spans()
    assert [span.load_begin_s for span in spans] == [0.0, 0.5, 1.0, 1.5]
    assert [span.load_end_s for span in spans] == [0.5, 1.0, 1.5, 2.0]
    assert [span.compute_begin_s for span in spans] == [0.5, 1.0, 1.5, 2.0]
    assert one.layer_s == 2.25


def test_layers_wait_for_computes_where_computing_is_slower() -> None:
    """Loads of 0.125 s, computes of 0.25 s: only the first load is not hidden."""
    one = prefix(load_bytes_per_s=4e6)
    assert [span.compute_begin_s for span in one.layer_spans()] == [0.125, 0.375, 0.625, 0.875]
    assert one.layer_s == 1.125
    assert one.block_s == 1.5


def test_with_one_layer_or_nothing_stored_both_paths_are_one() -> None:
    assert prefix(layers=1).layer_s == prefix(layers=1).block_s == 1.5
    nothing = prefix(reused_tokens=0)
    assert nothing.layer_s == nothing.block_s == nothing.recompute_s == 3.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reused_tokens": 3000}, "at least one is computed"),
        ({"reused_tokens": -1}, "at least one is computed"),
        ({"layers": 0}, "layers=0: must be positive"),
        ({"load_bytes_per_s": 0.0}, "load_bytes_per_s=0.0: must be positive"),
    ],
    ids=str,
)
def test_what_has_no_first_token_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prefix(**changes)


def of_a_run(**changes: Any) -> float | None:
    """3000 tokens, 600 computed, 1 MB loaded at 2 MB/s, 1000 tokens a second."""
    values: dict[str, Any] = {
        "prompt_tokens": 3000,
        "computed_tokens": 600,
        "loaded_bytes": 1_000_000,
        "prefill_tok_per_s": 1000.0,
        "load_bytes_per_s": 2e6,
    }
    return speedup(**{**values, **changes})


def test_speedup_of_a_run() -> None:
    """3 s over 0.6 s + 0.5 s."""
    assert of_a_run() == pytest.approx(3 / 1.1)
    # The prefill rate is the one knob: at ten times the rate the load weighs ten times as much.
    assert of_a_run(prefill_tok_per_s=10_000.0) == pytest.approx(0.3 / 0.56)
    assert of_a_run(loaded_bytes=0, load_bytes_per_s=None) == pytest.approx(5.0)


def test_speedup_that_cannot_be_said_is_none() -> None:
    assert of_a_run(load_bytes_per_s=None) is None
    assert of_a_run(prompt_tokens=0) is None
    assert of_a_run(computed_tokens=0, loaded_bytes=0) is None
