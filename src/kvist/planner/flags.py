"""The settings of other engines that follow from a plan, for those who run one of them."""

from __future__ import annotations

from kvist.planner.llama_cpp import TYPES
from kvist.planner.plan import Plan

_VLLM_DTYPES = {"bf16": "auto", "f32": "auto", "int8": "fp8"}


def vllm_flags(plan: Plan) -> list[str]:
    """Return vLLM's options: the context, how much memory, the cache's type, ranks, and the users that fit."""
    settings = plan.settings
    flags = [f"--max-model-len {plan.context}", f"--gpu-memory-utilization {settings.utilisation:g}"]
    flags.append(f"--kv-cache-dtype {_VLLM_DTYPES.get(settings.cache.k_codec, 'fp8')}")
    if settings.tensor_parallel > 1:
        flags.append(f"--tensor-parallel-size {settings.tensor_parallel}")
    if settings.num_replicas > 1:
        flags.append(f"--data-parallel-size {settings.num_replicas}")
    users = min(filter(None, (settings.users, plan.users)), default=None)
    if users:
        flags.append(f"--max-num-seqs {-(-users // settings.num_replicas)}")
    return flags


def llama_cpp_flags(plan: Plan) -> list[str]:
    """Return llama.cpp's options; its -c is the cells of all sequences together."""
    settings = plan.settings
    users = min(filter(None, (settings.users, plan.users)), default=1)
    k_type, v_type = TYPES[settings.cache.k_codec], TYPES[settings.cache.v_codec]
    flags = [f"-c {plan.context * users}", f"-np {users}", f"-ctk {k_type}", f"-ctv {v_type}", "-ngl 999"]
    if v_type.startswith("q"):
        flags.append("-fa on")
    return flags
