"""A runtime simulator: drives a KV-cache connector exactly as TensorRT-LLM does, without a GPU.

It finds the connector's classes only by the names in `make_kv_connector_config()`, follows the
runtime's order of calls over paged KV whose every byte is known in advance, and checks after every
step what must always hold (`INVARIANTS`).

| module | what |
|---|---|
| `instance` | what tests and verbs use: start, submit, run, drain, restart |
| `config`, `geometry`, `prompt`, `model_folder` | what is simulated |
| `engine` | the runtime's loop on one rank |
| `batching`, `reports`, `forward`, `completions` | phases of a turn of that loop |
| `calls`, `ledger` | every call into the connector: timed, guarded, counted, judged |
| `pool`, `blocks` | KV memory with poison and guards, and its allocator |
| `oracle` | what each byte must be |
| `collectives`, `rank_loop`, `thread_ranks`, `process_ranks`, `mpi_stand_in` | ranks |
| `workloads` | request streams to replay, and an exact cache to compare with |
| `violations` | the invariants by name, and how failures travel |
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
