"""The model behind every figure with `modeled` in its name: time to first token, in seconds.

Prefill computes `prefill_tok_per_s` tokens a second, whatever their position; each layer takes the
same share of it. Stored KV arrives at `load_bytes_per_s`. Nothing else costs time: no queueing, no
lookup, no first sampling. The block path loads everything, then computes. The layer path loads the
layers in order, one after the other, and computes a layer as soon as it is loaded and the layer
before it is computed.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LayerSpan", "Prefix", "speedup"]


def speedup(
    *,
    prompt_tokens: int,
    computed_tokens: int,
    loaded_bytes: int,
    prefill_tok_per_s: float,
    load_bytes_per_s: float | None,
) -> float | None:
    """Time without reuse over time with it, by the block path; None where it cannot be said."""
    if prompt_tokens <= 0 or (loaded_bytes and not load_bytes_per_s):
        return None
    load_s = loaded_bytes / load_bytes_per_s if load_bytes_per_s else 0.0
    with_reuse = computed_tokens / prefill_tok_per_s + load_s
    return prompt_tokens / prefill_tok_per_s / with_reuse if with_reuse > 0 else None


@dataclass(frozen=True)
class LayerSpan:
    """When one layer's KV is loaded and when the layer computes, from the request's start."""

    load_begin_s: float
    load_end_s: float
    compute_begin_s: float
    compute_end_s: float


@dataclass(frozen=True)
class Prefix:
    """One prompt, of which the first `reused_tokens` are stored."""

    prompt_tokens: int
    reused_tokens: int
    layers: int
    token_bytes_per_layer: int
    prefill_tok_per_s: float
    load_bytes_per_s: float

    def __post_init__(self) -> None:
        """Refuses what has no time to first token."""
        if not 0 <= self.reused_tokens < self.prompt_tokens:
            raise ValueError(
                f"reused_tokens={self.reused_tokens}: of {self.prompt_tokens} prompt tokens at "
                "least one is computed; remedy: 0 to one less than the prompt"
            )
        for name in ("layers", "token_bytes_per_layer", "prefill_tok_per_s", "load_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be positive")

    @property
    def recompute_s(self) -> float:
        """Without reuse."""
        return self.prompt_tokens / self.prefill_tok_per_s

    @property
    def compute_s(self) -> float:
        """Of the tokens that are not stored, all layers."""
        return (self.prompt_tokens - self.reused_tokens) / self.prefill_tok_per_s

    @property
    def load_s(self) -> float:
        """Of the stored tokens, all layers."""
        loaded = self.reused_tokens * self.token_bytes_per_layer * self.layers
        return loaded / self.load_bytes_per_s

    @property
    def block_s(self) -> float:
        """Everything is loaded, then the rest is computed."""
        return self.load_s + self.compute_s

    def layer_spans(self) -> list[LayerSpan]:
        """The layer path, layer by layer."""
        load, compute = self.load_s / self.layers, self.compute_s / self.layers
        spans: list[LayerSpan] = []
        computed_s = 0.0
        for layer in range(self.layers):
            loaded_s = (layer + 1) * load
            begin_s = max(loaded_s, computed_s)
            computed_s = begin_s + compute
            spans.append(LayerSpan(layer * load, loaded_s, begin_s, computed_s))
        return spans

    @property
    def layer_s(self) -> float:
        """The end of the last layer on the layer path."""
        return self.layer_spans()[-1].compute_end_s
