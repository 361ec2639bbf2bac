"""Re-slice blocks of a tensor-parallel group for a group of another size.

The codec alone: no key leads from the keyspace of one group size to that of another. What is
supported and what is refused: docs/format/head_remap.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mooncake_trtllm import _native

Payload = NDArray[np.uint8]


def remap_heads(
    payloads: Sequence[NDArray[Any]],
    *,
    to_ranks: int,
    order: str,
    layers: int,
    kv_heads: int,
    tokens_per_block: int,
    head_dim: int,
    element_bits: int,
    kv_factor: int = 2,
    packed_scales: bool = False,
) -> list[Payload]:
    """Return the payload of each of `to_ranks` ranks, given one payload per rank of now.

    A payload is [layers, 2, elements] of one rank, any dtype and shape, contiguous; `kv_heads` are
    those of the whole model. `order`, HND or NHD, is what the attention kernel uses. Raises
    KvConnectorConfigError with the reason where whole heads cannot be moved, KvConnectorLoadError
    if replicas of a head differ.
    """
    remap = _native.HeadRemap(
        order=order,
        from_ranks=len(payloads),
        to_ranks=to_ranks,
        layers=layers,
        kv_heads=kv_heads,
        tokens_per_block=tokens_per_block,
        head_dim=head_dim,
        element_bits=element_bits,
        kv_factor=kv_factor,
        packed_scales=packed_scales,
    )
    sources = [np.ascontiguousarray(payload).reshape(-1).view(np.uint8) for payload in payloads]
    return [remap.remap(sources, rank) for rank in range(to_ranks)]
