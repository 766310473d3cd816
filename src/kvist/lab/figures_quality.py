"""The figure of an evaluation: what a cache takes against what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvist.lab.figures import COLORS, Figure, add_caption, new_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvist.lab.quality_rows import Row

_MIB = 1 << 20
_LEAST_KL = 1e-6
"""Where a divergence of zero, or nearly, is drawn: it has no place on a logarithmic scale."""


def draw_quality(rows: Sequence[Row], context: int, caption: str) -> Figure:
    """Mean KL against bytes: a colour for what is kept, a point a codec, a line through those that none beats."""
    figure, (axis,) = new_figure(title=f"What a smaller cache costs, at {context:,} tokens")
    axis.plot(*zip(*pareto([_place(row) for row in rows]), strict=True), color=COLORS[5], linewidth=1, zorder=1)
    for number, retention in enumerate(dict.fromkeys(row.retention for row in rows)):
        shown = [row for row in rows if row.retention == retention]
        sizes, divergences = zip(*map(_place, shown), strict=True)
        axis.scatter(sizes, divergences, s=36, color=COLORS[number % len(COLORS)], zorder=2, label=f"kept: {retention}")
        for row in shown:
            axis.annotate(row.name, _place(row), xytext=(5, 5), textcoords="offset points", fontsize=7)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.margins(x=0.15, y=0.12)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_xlabel("MiB of one sequence")
    axis.set_ylabel("mean KL divergence from f32, nats a token")
    axis.legend(frameon=False, fontsize=8)
    add_caption(figure, caption)
    return figure


def _place(row: Row) -> tuple[float, float]:
    return row.num_bytes / _MIB, max(row.kl_mean, _LEAST_KL)


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other beats or equals in both numbers, smallest first number first."""
    front: list[tuple[float, float]] = []
    for point in sorted(points):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front
