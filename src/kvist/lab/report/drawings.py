"""The report's figures: each is drawn from its data alone, in a width for a desk and one for a phone.

Every series has a name inside the drawing (``gid``), by which a test finds it and reads its numbers back.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from kvist.lab.figures import COLORS, Axes, Figure, new_figure
from kvist.lab.figures_bench import smoothed
from kvist.lab.figures_quality import pareto
from kvist.units import format_bytes

Data = dict[str, Any]
Inches = tuple[float, float]
Draw = Callable[[Data, Inches], Figure]

WIDE: Inches = (7.2, 3.9)
NARROW: Inches = (4.4, 3.9)

_MIB, _GIB = 1 << 20, 1 << 30
_LEAST_KL = 1e-6
"""Where a divergence of zero, or nearly, is drawn: it has no place on a logarithmic scale."""


def _axes(inches: Inches, x: str, y: str) -> tuple[Figure, Axes]:
    figure, (axis,) = new_figure(inches=inches)
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    return figure, axis


def _legend(axis: Axes, **more: Any) -> None:
    axis.legend(frameon=False, fontsize=9, **more)


def _powers(axis: Axes, which: str) -> None:
    """A scale of powers of two, with whole numbers beside it."""
    getattr(axis, f"set_{which}scale")("log", base=2)
    getattr(axis, f"{which}axis").set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")


def draw_demonstration(data: Data, inches: Inches) -> Figure:
    """Milliseconds a token against its position, with the cache and without."""
    figure, axis = _axes(inches, "position of the token", "milliseconds a token")
    positions = data["positions"][1:]  # the first token's time is the prompt's
    for name, color in (("uncached", COLORS[1]), ("cached", COLORS[0])):
        times = data[f"{name}_token_s"][1:]
        axis.plot(positions, [1e3 * time for time in times], color=color, alpha=0.3, linewidth=0.8, gid=f"{name}-each")
        label = "with the cache" if name == "cached" else "without it"
        smooth = [1e3 * time for time in smoothed(times)]
        axis.plot(positions, smooth, color=color, linewidth=2, label=label, gid=name)
    axis.set_ylim(bottom=0)
    _legend(axis, loc="upper left")
    return figure


def draw_users(data: Data, inches: Inches) -> Figure:
    """GiB of all caches against users, a line a context; the weights as a line across."""
    figure, axis = _axes(inches, "users at once", f"GiB of {data['codec']} cache")
    for line, color in zip(data["users"], COLORS, strict=False):
        sizes = [size / _GIB for size in line["bytes"]]
        label = f"{line['context']:,} tokens each"
        axis.plot(line["users"], sizes, color=color, linewidth=2, label=label, gid=f"users-{line['context']}")
    _finish_memory(axis, data)
    return figure


def draw_contexts(data: Data, inches: Inches) -> Figure:
    """GiB of one sequence's cache against its length, a line a codec; crosses are arrays that were made."""
    figure, axis = _axes(inches, "tokens of one sequence", "GiB of cache")
    for line, color in zip(data["contexts"], COLORS, strict=False):
        sizes = [size / _GIB for size in line["bytes"]]
        axis.plot(line["tokens"], sizes, color=color, linewidth=2, label=line["codec"], gid=f"context-{line['codec']}")
    lengths, sizes = [one["tokens"] for one in data["measured"]], [one["bytes"] / _GIB for one in data["measured"]]
    axis.plot(lengths, sizes, "x", color=COLORS[5], markersize=7, label="made and measured", gid="measured")
    _finish_memory(axis, data)
    return figure


def _finish_memory(axis: Axes, data: Data) -> None:
    weights = data["weights_bytes"]
    label = f"the weights, {format_bytes(weights)}"
    axis.axhline(weights / _GIB, color="black", linestyle="--", linewidth=1.2, label=label, gid="weights")
    _powers(axis, "x")
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.margins(x=0.03)
    axis.set_ylim(top=20 * axis.get_ylim()[1])  # room for the legend above all lines
    _legend(axis, loc="upper left", ncols=2)


def draw_roofline(data: Data, inches: Inches) -> Figure:
    """Operations a second against operations a byte: the machine's two limits, and where the work stands under them."""
    figure, axis = _axes(inches, "operations for each byte read", "operations a second, in billions")
    bandwidth, peak = data["read_bandwidth"], data["int_dot_peak"]
    ridge, points = peak / bandwidth, data["points"]
    first = min(0.5, *(point["operations_per_byte"] / 2 for point in points))
    last = max(4 * ridge, *(2 * point["operations_per_byte"] for point in points))
    roof = [(first, bandwidth * first), (ridge, peak), (last, peak)]
    xs, ys = zip(*((x, y / 1e9) for x, y in roof), strict=True)
    axis.plot(xs, ys, color="black", linewidth=1.4, label="the machine's limit", gid="roof")
    for kind, color, label in (
        ("decode", COLORS[0], "decode, one user"),
        ("users", COLORS[2], "decode, {users} users"),
        ("prefill", COLORS[1], "prefill"),
    ):
        shown = [point for point in points if point["kind"] == kind]
        places = [(point["operations_per_byte"], point["operations_per_s"] / 1e9) for point in shown]
        said = label.format(users=shown[0]["users"])
        axis.plot(*zip(*places, strict=True), "o", color=color, markersize=7, label=said, gid=kind)
    axis.set_xscale("log")
    axis.set_yscale("log")
    for scale in (axis.xaxis, axis.yaxis):
        scale.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    _legend(axis, loc="lower right")
    return figure


def draw_smaller(data: Data, inches: Inches) -> Figure:
    """Mean KL against MiB of a sequence: a point a way of keeping the cache, a line through those that none beats."""
    figure, axis = _axes(inches, f"MiB of a sequence of {data['context']:,} tokens", "mean KL from f32, nats a token")
    places = [(row["bytes"] / _MIB, max(row["kl_mean"], _LEAST_KL)) for row in data["rows"]]
    axis.plot(*zip(*pareto(places), strict=True), color=COLORS[5], linewidth=1, zorder=1, gid="front")
    for name, color, label in (("codecs", COLORS[0], "all tokens kept"), ("kept", COLORS[1], "fewer tokens kept")):
        shown = [place for place, row in zip(places, data["rows"], strict=True) if _is_whole(row) == (name == "codecs")]
        xs, ys = zip(*shown, strict=True)
        axis.plot(xs, ys, "o", color=color, markersize=7, label=label, zorder=2, gid=name)
    for place, row in zip(places, data["rows"], strict=True):
        axis.annotate(way(row), place, xytext=(6, 5), textcoords="offset points", fontsize=9)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.margins(x=0.22, y=0.15)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    _legend(axis, loc="best")
    return figure


def _is_whole(row: Data) -> bool:
    return bool(row["retention"] == "all")


def way(row: Data) -> str:
    """A way of keeping the cache in a word."""
    codecs = row["k"] if row["k"] == row["v"] else f"{row['k']}/{row['v']}"
    return codecs if _is_whole(row) else str(row["retention"])


def draw_timeline(data: Data, inches: Inches) -> Figure:
    """A lane a request: waiting, its prompt being read, and a tick for each token."""
    figure, axis = _axes(inches, "seconds", "")
    for number, lane in enumerate(data["requests"]):
        is_first, ticks = number == 0, lane["token_s"]
        for name, label, start, end, color, alpha in (
            ("waits", "waits", lane["asked_s"], lane["admitted_s"], COLORS[5], 0.35),
            ("reads", "its prompt is read", lane["admitted_s"], ticks[0], COLORS[3], 0.85),
        ):
            (bar,) = axis.barh(number, end - start, left=start, height=0.5, color=color, alpha=alpha)
            bar.set_gid(f"{name}-{number}")
            bar.set_label(label if is_first else "")
        (drawn,) = axis.plot(ticks, [number] * len(ticks), "|", color=COLORS[0], markersize=11, gid=f"tokens-{number}")
        drawn.set_label("a token comes" if is_first else "")
    lanes = [f"{lane['prompt_tokens']:,} + {lane['generated_tokens']}" for lane in data["requests"]]
    axis.set_yticks(range(len(lanes)), lanes)
    axis.set_ylabel("tokens of prompt + answer")
    axis.set_ylim(len(lanes) - 0.4, -1.2)  # the first on top, the legend above it
    axis.grid(visible=False, axis="y")
    _legend(axis, loc="upper right", ncols=3)
    return figure


def longest_wait_s(data: Data) -> float:
    """The longest that anybody waited for a next token."""
    waits = [after - before for lane in data["requests"] for before, after in pairwise(lane["token_s"])]
    return float(max(waits))


def draw_planned(data: Data, inches: Inches) -> Figure:
    """Users that fit: a bar a device and codec, a group a model."""
    figure, axis = _axes(inches, f"users of {data['context']:,} tokens each", "")
    plans, height = data["plans"], 0.38
    for part, (codec, color) in enumerate((("bf16", COLORS[0]), ("int8", COLORS[3]))):
        places = [number + (part - 0.5) * height for number in range(len(plans))]
        users = [one["users"][codec] for one in plans]
        bars = axis.barh(places, users, height=height, color=color, label=f"{codec} cache")
        for number, (bar, count) in enumerate(zip(bars, users, strict=True)):
            bar.set_gid(f"{codec}-{number}")
            axis.annotate(
                f"{count:,}",
                (count, places[number]),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
    names = [f"{one['model']}, {one['device'].rsplit(' ', 1)[0]}" for one in plans]
    axis.set_yticks(range(len(plans)), names, fontsize=8)
    axis.set_ylim(len(plans) - 0.4, -1.6)  # the first on top, the legend above it
    axis.set_xscale("symlog", linthresh=4)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.margins(x=0.12)
    axis.grid(visible=False, axis="y")
    _legend(axis, loc="upper right", ncols=2)
    return figure
