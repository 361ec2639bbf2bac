"""A runtime simulator: drives a KV-cache connector exactly as TensorRT-LLM does, without a GPU.

It finds the connector's classes only by the names in `make_kv_connector_config()`, follows the
runtime's order of calls over paged KV whose every byte is known in advance, and checks after every
step what must always hold (`INVARIANTS`).
"""

from mooncake_trtllm.simulator.config import ConnectorNames, InstanceConfig
from mooncake_trtllm.simulator.geometry import DTYPES, Geometry
from mooncake_trtllm.simulator.instance import Instance
from mooncake_trtllm.simulator.model_folder import ModelFolder
from mooncake_trtllm.simulator.prompt import Media, Prompt
from mooncake_trtllm.simulator.record import RequestResult
from mooncake_trtllm.simulator.violations import (
    INVARIANTS,
    InvariantError,
    RankError,
    SimulationError,
)

__all__ = [
    "DTYPES",
    "INVARIANTS",
    "ConnectorNames",
    "Geometry",
    "Instance",
    "InstanceConfig",
    "InvariantError",
    "Media",
    "ModelFolder",
    "Prompt",
    "RankError",
    "RequestResult",
    "SimulationError",
]
