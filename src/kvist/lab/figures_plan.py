"""The plan's figures: bytes against context by codec with a line for the memory there is, users against context."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kvist.errors import SpecError
from kvist.lab.figures import COLORS, Axes, Figure, check_figure_path, new_figure, save_figure
from kvist.planner.plan import Plan
from kvist.spec.cache import CacheSpec

_GIB = 1 << 30
_HTML = (".html", ".htm")


def check_plot_path(path: Path) -> None:
    """Raise KvistError unless a plan can be drawn into ``path``."""
    check_figure_path(path.with_suffix(".svg") if path.suffix.lower() in _HTML else path)


def save_plot(figure: Figure, path: Path) -> None:
    """Write the figure; a page holds it as SVG, so that it needs no other file."""
    if path.suffix.lower() not in _HTML:
        save_figure(figure, path)
        return
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg")
    picture = drawn.getvalue()
    title = html.escape("kvist plan")
    page = f'<!doctype html>\n<meta charset="utf-8">\n<title>{title}</title>\n{picture[picture.index("<svg") :]}'
    path.write_text(page, encoding="utf-8")


def draw_plan(plans: Sequence[Plan]) -> Figure:
    """Bytes of one sequence against its length for every codec, and users against length where there is a memory."""
    has_memory = any(plan.budget is not None for plan in plans)
    names = ", ".join(plan.source.name or plan.source.architecture for plan in plans)
    figure, axes = new_figure(2 if has_memory else 1, title=f"The KV cache of {names}")
    if len(plans) == 1:
        _draw_codecs(axes[0], plans[0])
    else:
        _draw_models(axes[0], plans)
    if has_memory:
        _draw_users(axes[1], plans)
    return figure


def _lengths(plan: Plan) -> list[int]:
    """Lengths from 256 tokens to the trained length or the plan's, at even ratios."""
    last = max(plan.context, plan.source.context_length, 512)
    steps = 120
    return sorted({round(256 * (last / 256) ** (step / steps)) for step in range(steps + 1)})


def _in_codec(plan: Plan, codec: str) -> Plan | None:
    try:
        return Plan(plan.source, replace(plan.settings, cache=CacheSpec(codec)))
    except SpecError:
        return None


def _codec_plans(plan: Plan) -> list[tuple[str, Plan]]:
    made = [(codec, _in_codec(plan, codec)) for codec in plan.settings.engine.codecs]
    return [(codec, found) for codec, found in made if found is not None]


def _charged(plan: Plan, lengths: Sequence[int]) -> list[float]:
    return [plan.settings.engine.charged_bytes(plan.rank, length) / _GIB for length in lengths]


def _draw_codecs(axis: Axes, plan: Plan) -> None:
    lengths = _lengths(plan)
    for (codec, found), color in zip(_codec_plans(plan), COLORS, strict=False):
        axis.plot(lengths, _charged(found, lengths), color=color, label=codec)
    _finish_bytes(axis, [plan])


def _draw_models(axis: Axes, plans: Sequence[Plan]) -> None:
    for number, plan in enumerate(plans):
        lengths = _lengths(plan)
        name = plan.source.name or plan.source.architecture
        axis.plot(lengths, _charged(plan, lengths), color=COLORS[number % len(COLORS)], label=name)
    _finish_bytes(axis, plans)


def _finish_bytes(axis: Axes, plans: Sequence[Plan]) -> None:
    for number, plan in enumerate(plans):
        if plan.budget is not None and plan.budget.kv_bytes:
            label = f"memory for the cache, {plan.budget.kv_bytes / _GIB:.1f} GiB" if not number else None
            axis.axhline(plan.budget.kv_bytes / _GIB, color="#5c6770", linestyle="--", linewidth=1, label=label)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xlabel("tokens of one sequence")
    axis.set_ylabel("GiB on one device")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.legend(frameon=False, fontsize=8)


def _draw_users(axis: Axes, plans: Sequence[Plan]) -> None:
    shown = [(name, found) for name, found in _codec_plans(plans[0])] if len(plans) == 1 else []
    shown = shown or [(plan.source.name or plan.source.architecture, plan) for plan in plans]
    for (name, plan), color in zip(shown, COLORS, strict=False):
        lengths = _lengths(plan)
        points = [(length, users) for length in lengths if (users := _users(plan, length))]
        if points:
            axis.plot(*zip(*points, strict=True), color=color, label=name)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xlabel("tokens of each sequence")
    axis.set_ylabel("sequences that fit")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.legend(frameon=False, fontsize=8)


def _users(plan: Plan, length: int) -> int | None:
    return Plan(plan.source, replace(plan.settings, context=length)).users
