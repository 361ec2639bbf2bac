"""The shape of a simulated KV cache."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DTYPES", "Dtype", "Geometry"]


@dataclass(frozen=True)
class Dtype:
    """Stands for a torch dtype: `str()` is torch's, the bytes are opaque."""

    name: str
    torch_name: str
    itemsize: int

    def __str__(self) -> str:
        return f"torch.{self.torch_name}"

    __repr__ = __str__


DTYPES = {
    dtype.name: dtype
    for dtype in (
        Dtype("float16", "float16", 2),
        Dtype("bfloat16", "bfloat16", 2),
        Dtype("float32", "float32", 4),
        Dtype("fp8", "float8_e4m3fn", 1),
        Dtype("int8", "int8", 1),
    )
}


@dataclass(frozen=True)
class Geometry:
    """One pool of the V1 manager, described over all tensor-parallel ranks together."""

    layers: int = 4
    kv_heads: int = 4
    head_dim: int = 16
    tokens_per_block: int = 32
    dtype: str = "bfloat16"
    kv_factor: int = 2

    def __post_init__(self) -> None:
        """Refuses sizes that no pool can have."""
        for name in ("layers", "kv_heads", "head_dim", "tokens_per_block"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(
                    f"{name}={value!r}: must be a positive integer; remedy: correct it"
                )
        if self.kv_factor not in (1, 2):
            raise ValueError(f"kv_factor={self.kv_factor!r}: 1 (keys alone) or 2; remedy: pick one")
        if self.dtype not in DTYPES:
            raise ValueError(
                f"dtype={self.dtype!r}: unknown; remedy: one of {', '.join(sorted(DTYPES))}"
            )

    def heads_per_rank(self, tp: int) -> int:
        """KV heads on one rank; `tp` must divide them."""
        if self.kv_heads % tp:
            raise ValueError(
                f"kv_heads={self.kv_heads} cannot be shared out to {tp} ranks; "
                "remedy: a multiple of the tensor-parallel size"
            )
        return self.kv_heads // tp

    def token_bytes(self, tp: int) -> int:
        """Bytes of one token in one layer, K or V, on one rank."""
        return self.heads_per_rank(tp) * self.head_dim * DTYPES[self.dtype].itemsize

    def page_bytes(self, tp: int) -> int:
        """Bytes of one block on one rank, all layers."""
        return self.layers * self.kv_factor * self.tokens_per_block * self.token_bytes(tp)

    def block_bytes(self) -> int:
        """Bytes of one block over all ranks."""
        return self.page_bytes(1)

    def token_bytes_all_layers(self) -> int:
        """Bytes of one token over all layers and ranks."""
        return self.block_bytes() // self.tokens_per_block
