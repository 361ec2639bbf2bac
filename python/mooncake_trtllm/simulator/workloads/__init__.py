"""Request streams to replay, and the exact cache that says what of them could be hit."""

from mooncake_trtllm.simulator.workloads.agentic import agentic_workload
from mooncake_trtllm.simulator.workloads.fast25 import TraceFormatError, read_fast25
from mooncake_trtllm.simulator.workloads.ideal import IdealCache
from mooncake_trtllm.simulator.workloads.prompts import prompts_workload
from mooncake_trtllm.simulator.workloads.workload import Tokens, Workload

__all__ = [
    "IdealCache",
    "Tokens",
    "TraceFormatError",
    "Workload",
    "agentic_workload",
    "prompts_workload",
    "read_fast25",
]
