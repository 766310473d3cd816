"""``kvist plan``: how many bytes, users and tokens fit, and how fast, from a model's config alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kvist.cli.flatten import flattened
from kvist.cli.output import Output, command
from kvist.cli.plan_options import LOCAL, CacheOptions, MemoryOptions, UserOptions, catalog_device, settings
from kvist.cli.plan_source import Source, read_source
from kvist.cli.plan_table import comparison, lines
from kvist.errors import KvistError, SpecError
from kvist.planner.devices import DEVICES
from kvist.planner.document import document
from kvist.planner.explain import explain
from kvist.planner.flags import llama_cpp_flags, vllm_flags
from kvist.planner.hardware import Device
from kvist.planner.lengths import Demand, demand
from kvist.planner.plan import Plan
from kvist.spec.cache import BLOCK_TOKENS
from kvist.units import format_bytes

Models = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONFIG...",
        help="A config.json, a model's directory or GGUF file, a name (see kvist models), hf:ORG/NAME.",
    ),
]


@command
@flattened
def plan(
    cache: CacheOptions,
    memory: MemoryOptions,
    users: UserOptions,
    models: Models = None,
    is_explained: Annotated[bool, typer.Option("--explain", help="Show the arithmetic, the numbers put in.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw bytes and users into a .png, .svg or .html (extra lab).")
    ] = None,
    wants_vllm_flags: Annotated[bool, typer.Option("--vllm-flags", help="The settings for vLLM that follow.")] = False,
    wants_llama_flags: Annotated[
        bool, typer.Option("--llamacpp-flags", help="The settings for llama.cpp that follow.")
    ] = False,
    is_list: Annotated[bool, typer.Option("--list-gpus", help="Show the devices that are known.")] = False,
    is_check: Annotated[
        bool, typer.Option("--check", help="Load the model in kvist and compare predicted with real bytes.")
    ] = False,
    is_calibration: Annotated[
        bool, typer.Option("--calibrate", help=f"Measure this machine once; then --gpu {LOCAL} means it.")
    ] = False,
    is_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document as the last line of stdout.")
    ] = False,
) -> None:
    """Plan a cache: bytes, users, contexts and speed, from a model's config alone, without weights or a GPU."""
    out = Output(is_json)
    facts = _list_devices(out) if is_list else _calibrate(out) if is_calibration else {}
    if facts and not models:
        out.finish(facts)
        return
    if not models:
        raise SpecError("kvist plan needs a model: a config.json, a directory, a GGUF file, a name, or hf:ORG/NAME")
    if plot is not None:
        from kvist.lab.figures_plan import check_plot_path

        check_plot_path(plot)
    device = None if memory.gpu is None else _device(memory.gpu)
    answers = [_answer(read_source(name), cache, memory, users, device) for name in models]
    shown = [made for made, _ in answers]
    for line in comparison(shown) if len(shown) > 1 else lines(*answers[0], users.preemption):
        out.line(line)
    for made, _ in answers:
        _show_more(out, made, is_explained, wants_vllm_flags, wants_llama_flags)
    if plot is not None:
        from kvist.lab.figures_plan import draw_plan, save_plot

        save_plot(draw_plan(shown), plot)
        out.notice(f"drawn into {plot}")
    documents = [document(made, law, users.preemption) for made, law in answers]
    if is_check:
        from kvist.cli.plan_check import check

        for name, (made, _), found in zip(models, answers, documents, strict=True):
            found["check"] = check(name, made, out)
    for (made, _), found in zip(answers, documents, strict=True):
        found.update(_flags(made, wants_vllm_flags, wants_llama_flags))
    out.finish(documents[0] if len(documents) == 1 else {"plans": documents})
    if is_check and not all(found["check"]["equal"] for found in documents):
        raise KvistError("predicted and real bytes differ; that is a bug in kvist, please report it")


def _calibrate(out: Output) -> dict[str, Any]:
    from kvist.cli.calibration import calibrate

    return {"calibration": calibrate(out)}


def _device(name: str) -> Device:
    if name == LOCAL:
        from kvist.cli.calibration import local_device

        return local_device()
    return catalog_device(name)


def _answer(
    source: Source, cache: CacheOptions, memory: MemoryOptions, users: UserOptions, device: Device | None
) -> tuple[Plan, Demand | None]:
    made = Plan(source.spec, settings(cache, memory, users, device, source.weights_bytes))
    lengths = users.lengths(made.context)
    if lengths is None:
        return made, None
    return made, demand(lengths, lambda tokens: _charged(made, tokens), users.shared_prefix, _shared(made, users))


def _charged(made: Plan, num_tokens: int) -> int:
    return made.settings.engine.charged_bytes(made.rank, num_tokens)


def _shared(made: Plan, users: UserOptions) -> int:
    """Bytes of one rank that a shared prefix takes: whole blocks of the layers that keep everything."""
    return made.rank.full_bytes_per_token * (users.shared_prefix // BLOCK_TOKENS * BLOCK_TOKENS)


def _show_more(out: Output, made: Plan, is_explained: bool, wants_vllm: bool, wants_llama: bool) -> None:
    if is_explained:
        out.line()
        for line in explain(made):
            out.line(line)
    if wants_vllm:
        out.line(f"vllm serve {made.source.name} {' '.join(vllm_flags(made))}")
    if wants_llama:
        out.line(f"llama-server {' '.join(llama_cpp_flags(made))}")


def _flags(made: Plan, wants_vllm: bool, wants_llama: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"vllm_flags": vllm_flags(made)} if wants_vllm else {}
    return found | ({"llamacpp_flags": llama_cpp_flags(made)} if wants_llama else {})


def _list_devices(out: Output) -> dict[str, Any]:
    """Show the catalog; what nobody has checked has a question mark."""
    out.line(f"{'device':<28} {'memory':>12} {'bandwidth':>12} {'bf16':>14}")
    for device in DEVICES:
        memory, peak = device.usable_bytes or device.memory_bytes, device.peak("bf16")
        speed = f"{device.bandwidth.value / 1e9:,.0f} GB/s{_mark(device.bandwidth.is_verified)}"
        peak_text = f"{peak.value / 1e12:,.0f} TFLOP/s{_mark(peak.is_verified)}" if peak else "-"
        size = f"{format_bytes(int(memory.value))}{_mark(memory.is_verified)}"
        out.line(f"{device.name:<28} {size:>12} {speed:>12} {peak_text:>14}")
    out.line("? unverified; kvist plan --json gives every number's origin")
    return {"devices": [device.name for device in DEVICES]}


def _mark(is_verified: bool) -> str:
    return " " if is_verified else "?"
