"""The figure of an evaluation: what a cache takes against what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvist.lab.figures import COLORS, Axes, Figure, new_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvist.lab.quality_rows import Row

_MIB = 1 << 20
_LEAST_KL = 1e-6
"""Where a divergence of zero, or nearly, is drawn: it has no place on a logarithmic scale."""


def draw_quality(rows: Sequence[Row], context: int, caption: str) -> Figure:
    """Mean KL against bytes, a point for each way of keeping the cache, and a line through those that none beats."""
    figure, (axis,) = new_figure(title=f"What a smaller cache costs, at {context:,} tokens")
    points = [(row.num_bytes / _MIB, max(row.kl_mean, _LEAST_KL), _label_of(row)) for row in rows]
    front = pareto([(size, kl) for size, kl, _ in points])
    axis.plot(*zip(*front, strict=True), color=COLORS[0], linewidth=1.2, zorder=1)
    for size, kl, name in points:
        is_best = (size, kl) in front
        axis.scatter([size], [kl], s=36, color=COLORS[0 if is_best else 1], zorder=2)
        _label(axis, size, kl, name)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.margins(x=0.15, y=0.12)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_xlabel("MiB of one sequence")
    axis.set_ylabel("mean KL divergence from f32, nats a token")
    figure.supxlabel(caption, fontsize=7, color="#5c6770", x=0.01, ha="left")
    return figure


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other beats or equals in both numbers, smallest first number first."""
    front: list[tuple[float, float]] = []
    for point in sorted(points):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front


def _label_of(row: Row) -> str:
    return row.name if row.retention == "all" else f"{row.name}, {row.retention}"


def _label(axis: Axes, x: float, y: float, text: str) -> None:
    axis.annotate(text, (x, y), xytext=(5, 5), textcoords="offset points", fontsize=7)
