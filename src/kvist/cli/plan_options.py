"""The options of ``kvist plan``, in groups, and the settings that they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from kvist.cli.options import KvK, KvKeepLayers, KvV, Retention, cache_spec
from kvist.errors import SpecError
from kvist.planner.devices import DEVICES
from kvist.planner.engine import Engine, KvistEngine
from kvist.planner.hardware import Device, find_device
from kvist.planner.lengths import Lengths
from kvist.planner.llama_cpp import LlamaCppEngine
from kvist.planner.settings import PlanSettings
from kvist.planner.vllm import DEFAULT_BATCHED_TOKENS, VllmEngine
from kvist.planner.weight_types import BITS
from kvist.spec.cache import CODECS
from kvist.spec.retention import ALL
from kvist.spec.state import STATE_BYTES
from kvist.units import parse_bytes

ENGINES = ("kvist", "vllm", "llama.cpp")
LOCAL = "local"
"""The name of the machine that --calibrate measured."""


@dataclass(frozen=True)
class CacheOptions:
    """What is kept, and how."""

    context: Annotated[
        int | None,
        typer.Option("--context", "--ctx", metavar="TOKENS", help="Length of a sequence. Default: as trained."),
    ] = None
    kv: Annotated[
        str, typer.Option("--kv", metavar="CODEC", help=f"How keys and values are kept: {', '.join(CODECS)}.")
    ] = "bf16"
    kv_k: KvK = None
    kv_v: KvV = None
    kv_keep_layers: KvKeepLayers = None
    state_dtype: Annotated[
        str, typer.Option(metavar="TYPE", help=f"Precision of recurrent states: {', '.join(STATE_BYTES)}.")
    ] = "f32"
    encoder_tokens: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="What cross attention sees. Default: the encoder's own length.")
    ] = None
    window: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="Let every layer keep no more than the last TOKENS.")
    ] = None
    retention: Retention = str(ALL)


@dataclass(frozen=True)
class MemoryOptions:
    """Where it has to fit."""

    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help=f'A device (see --list-gpus), or "{LOCAL}" once calibrated.')
    ] = None
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="One device's memory, such as 24GiB.")] = None
    kv_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="What the cache may take, whatever the weights.")
    ] = None
    tp: Annotated[int, typer.Option(metavar="N", help="Tensor parallel degree.")] = 1
    devices: Annotated[int | None, typer.Option(metavar="N", help="Devices in all; more than --tp hold replicas.")] = (
        None
    )
    utilisation: Annotated[
        float, typer.Option("--utilisation", "--utilization", metavar="SHARE", help="Share of the memory to use.")
    ] = 0.9
    overhead: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory beside weights and cache. Default: the engine's estimate."),
    ] = None
    weights: Annotated[
        str | None, typer.Option(metavar="TYPE", help=f"Type of the weights: {', '.join(BITS)}. Default: as published.")
    ] = None
    weight_bytes: Annotated[str | None, typer.Option(metavar="SIZE", help="The weights' size, if it's known.")] = None
    engine: Annotated[str, typer.Option(metavar="NAME", help=f"Whose blocks to count: {', '.join(ENGINES)}.")] = "kvist"
    batched_tokens: Annotated[int, typer.Option(metavar="TOKENS", help="vLLM's max-num-batched-tokens.")] = (
        DEFAULT_BATCHED_TOKENS
    )
    pool_blocks: Annotated[
        int | None, typer.Option(metavar="N", help="vLLM's number of GPU blocks, as a log has it.")
    ] = None


@dataclass(frozen=True)
class UserOptions:
    """How many, and how long."""

    users: Annotated[int | None, typer.Option(metavar="N", help="Sequences at the same time that you wish for.")] = None
    prompt: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="Length of the prompt, for the time to the first token.")
    ] = None
    context_mean: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="Mean length, where lengths differ (with --context-p99).")
    ] = None
    context_p99: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="The length that one sequence in a hundred exceeds.")
    ] = None
    shared_prefix: Annotated[
        int, typer.Option(metavar="TOKENS", help="Tokens that all sequences begin with, stored once.")
    ] = 0
    preemption: Annotated[float, typer.Option(metavar="P", help="The probability of running out that you accept.")] = (
        0.01
    )

    def lengths(self, longest: int) -> Lengths | None:
        """Return the law of lengths, None where none was given."""
        if not 0 < self.preemption < 1:
            raise SpecError(f"--preemption must be between 0 and 1, got {self.preemption}")
        if self.shared_prefix < 0 or self.shared_prefix > longest:
            raise SpecError(f"--shared-prefix must be between 0 and the context of {longest}, got {self.shared_prefix}")
        if self.context_mean is None and self.context_p99 is None:
            return Lengths(longest, longest, longest) if self.shared_prefix else None
        if self.context_mean is None or self.context_p99 is None:
            raise SpecError("lengths that differ need both --context-mean and --context-p99")
        return Lengths(self.context_mean, self.context_p99, max(longest, self.context_p99))


def settings(
    cache: CacheOptions, memory: MemoryOptions, users: UserOptions, device: Device | None, weights_bytes: int | None
) -> PlanSettings:
    """Return the settings that the options make; ``weights_bytes`` is what the model's files hold.

    Raises:
        SpecError: an option is unknown or out of range.
    """
    given = _size("--weight-bytes", memory.weight_bytes)
    return PlanSettings(
        context=cache.context,
        cache=cache_spec(cache.kv, cache.kv_k, cache.kv_v, cache.kv_keep_layers, cache.retention),
        state_codec=cache.state_dtype,
        encoder_tokens=cache.encoder_tokens,
        engine=_engine(memory),
        tensor_parallel=memory.tp,
        num_devices=memory.devices,
        device=device,
        memory_bytes=_size("--memory", memory.memory),
        kv_memory_bytes=_size("--kv-memory", memory.kv_memory),
        utilisation=memory.utilisation,
        overhead_bytes=_size("--overhead", memory.overhead, least=0),
        weight_type=memory.weights,
        weight_bytes=given or (weights_bytes if memory.weights is None else None),
        users=users.users,
        window=cache.window,
        prompt_tokens=users.prompt,
    )


def catalog_device(name: str) -> Device:
    """Return a device of the catalog."""
    return find_device(name, DEVICES)


def _size(option: str, text: str | None, least: int = 1 << 20) -> int | None:
    """Return a size; one below a megabyte is a forgotten unit."""
    if text is None:
        return None
    size = parse_bytes(text)
    if size < least:
        raise SpecError(f"{option} must be at least 1 MiB, got {size} B; write a unit, such as 24GiB")
    return size


def _engine(memory: MemoryOptions) -> Engine:
    if memory.engine == "kvist":
        return KvistEngine()
    if memory.engine == "vllm":
        if memory.batched_tokens < 1 or (memory.pool_blocks or 1) < 1:
            raise SpecError("--batched-tokens and --pool-blocks must be at least 1")
        return VllmEngine(memory.batched_tokens, memory.pool_blocks)
    if memory.engine in ("llama.cpp", "llamacpp", "llama-cpp"):
        return LlamaCppEngine()
    raise SpecError(f'unknown engine "{memory.engine}" for --engine; known: {", ".join(ENGINES)}')
