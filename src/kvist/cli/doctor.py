"""``kvist doctor``: what kvist finds on this machine, and what makes it slow."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import kvist
from kvist.cli import options
from kvist.cli.cache import files_in
from kvist.cli.output import Output, command
from kvist.units import format_bytes

_PACKAGES = ("numpy", "numba", "llvmlite", "tokenizers", "safetensors", "gguf", "jinja2", "typer", "huggingface_hub")
_FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx512bf16", "avxvnni", "neon")
_TARGETS = {
    "avx512vnni": "512-bit vectors with integer dot products, the fastest there is",
    "avx512": "512-bit vectors without VNNI: an integer dot product takes several instructions instead of one",
    "avxvnni": "256-bit vectors with integer dot products",
    "avx2": "256-bit vectors without VNNI: expect half the speed of AVX-512 in prefill",
    "neon": "128-bit vectors",
    "generic": "no vector instructions that kvist knows: slow",
}
_ENVIRONMENT = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_DISABLE_JIT", "KVIST_CACHE_DIR", "XDG_CACHE_HOME")


@command
def doctor(is_json: options.Json = False) -> None:
    """Show processor, threads, memory, caches and versions, and say what is slow here and why."""
    out = Output(is_json)
    facts = {**_software(), **_machine(), **_kernels()}
    facts["problems"] = [*_kernel_problems(facts), *_core_problems(facts)]
    for name, value in _rows(facts):
        out.line(f"{name:<13} {value}")
    out.finish(facts)


def _software() -> dict[str, Any]:
    return {
        "kvist": kvist.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "environment": {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
    }


def _machine() -> dict[str, Any]:
    from kvist.cache.memory import available_memory
    from kvist.engine.cores import usable_cores

    cores = usable_cores()
    return {
        "cpu": _cpu_name(),
        "cores": asdict(cores),
        "threads": cores.num_usable,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
        "available_memory_bytes": available_memory(),
    }


def _kernels() -> dict[str, Any]:
    from kvist.kernels import jit, target

    directory = jit.cache_directory()
    compiled = files_in(directory)
    return {
        "cpu_features": [name for name in _FEATURES if name in target.features()],
        "target": target.current().name,
        "is_jit_off": jit.IS_JIT_OFF,
        "cache_directory": None if directory is None else str(directory),
        "is_cache_temporary": directory is not None and jit.cache_root() not in directory.parents,
        "compiled_files": len(compiled),
        "compiled_bytes": sum(path.stat().st_size for path in compiled),
    }


def _kernel_problems(facts: dict[str, Any]) -> Iterator[str]:
    if facts["is_jit_off"]:
        yield "NUMBA_DISABLE_JIT is set: kernels run as plain Python, thousands of times slower; unset it"
    if facts["target"] != "avx512vnni":
        yield f"kernels are compiled for {facts['target']}: {_TARGETS[facts['target']]}"
    if "NUMBA_CPU_NAME" in facts["environment"]:
        yield "NUMBA_CPU_NAME is set: kernels are compiled for that processor instead of this one"
    if facts["cache_directory"] is None:
        yield "no cache directory can be written: every start compiles all kernels; set KVIST_CACHE_DIR"
    elif facts["is_cache_temporary"]:
        yield "the user's cache directory can't be written: kernels are kept in the temporary one until it is emptied"
    if facts["cache_directory"] is not None and not facts["compiled_files"]:
        yield "no kernel is compiled yet: the first run takes longer, once"


def _core_problems(facts: dict[str, Any]) -> Iterator[str]:
    cores, num_physical = facts["cores"], facts["cores"]["num_physical"]
    if cores["num_processors"] > num_physical:
        yield f"{cores['num_processors']} hardware threads share {num_physical} cores: more --threads don't help"
    if facts["threads"] < num_physical:
        yield f"this container may use {cores['quota']:g} of {num_physical} cores, hence {facts['threads']} threads"
    if facts["load"] > num_physical / 2:
        yield f"other work is running (load {facts['load']:.1f} on {num_physical} cores): each step waits for it"


def _rows(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    cores, memory = facts["cores"], facts["available_memory_bytes"]
    quota = "" if cores["quota"] is None else f", a quota of {cores['quota']:g}"
    compiled = f"{facts['compiled_files']} files, {format_bytes(facts['compiled_bytes'])}"
    yield "kvist", f"{facts['kvist']}, Python {facts['python']}, {facts['platform']}"
    yield "packages", ", ".join(f"{name} {version or 'missing'}" for name, version in facts["packages"].items())
    yield (
        "processor",
        f"{facts['cpu']}: {', '.join(facts['cpu_features']) or 'no vector instructions that kvist knows'}",
    )
    yield "compiled for", f"{facts['target']}: {_TARGETS[facts['target']]}"
    processors = f"{cores['num_processors']} processors on {cores['num_physical']} cores{quota}"
    yield "threads", f"{facts['threads']} by default: {processors}"
    yield "free memory", "unknown" if memory is None else format_bytes(memory)
    yield "kernel cache", f"{facts['cache_directory'] or 'nowhere that can be written'}: {compiled}"
    for name, value in facts["environment"].items():
        yield "environment", f"{name}={value}"
    for problem in facts["problems"] or ["nothing found"]:
        yield "slow", problem


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
