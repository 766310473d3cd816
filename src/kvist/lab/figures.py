"""Figures of the lab: one look for all of them, and the only place that imports matplotlib (extra ``lab``).

Knows how a figure looks and how it is written; what the numbers mean is said by those who measured them.
"""

from __future__ import annotations

import io
import re
import textwrap
from typing import TYPE_CHECKING

from kvist.errors import KvistError

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise KvistError("drawing needs matplotlib, which isn't installed; pip install 'kvist[lab]'") from error

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "COLORS",
    "FORMATS",
    "Axes",
    "Figure",
    "add_caption",
    "check_figure_path",
    "new_figure",
    "save_figure",
    "svg_text",
]

FORMATS = ("png", "svg", "pdf")
COLORS = ("#1b6ca8", "#d1495b", "#3d8361", "#b8860b", "#6a4c93", "#5c6770")
"""Told apart by their lightness too, so that a print in grey still reads."""
GRID = "#d9dde1"
CAPTION_CHARACTERS = 18
"""Of a caption, to an inch."""


def new_figure(
    num_columns: int = 1, *, title: str = "", inches: tuple[float, float] = (6.4, 4.0)
) -> tuple[Figure, list[Axes]]:
    """Return a figure of ``num_columns`` axes of ``inches`` side by side in the house's look.

    No window system is touched: the figure belongs to no global state and is freed with its last name.
    """
    figure = Figure(figsize=(inches[0] * num_columns, inches[1]), dpi=144, layout="constrained")
    axes = [figure.add_subplot(1, num_columns, column + 1) for column in range(num_columns)]
    for axis in axes:
        axis.grid(visible=True, color=GRID, linewidth=0.6)
        axis.set_axisbelow(True)
        axis.set_prop_cycle(color=COLORS)
        axis.spines[["top", "right"]].set_visible(False)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure, axes


def add_caption(figure: Figure, text: str) -> None:
    """Write what the figure was made with under it, in as many lines as it takes."""
    lines = textwrap.fill(text, int(CAPTION_CHARACTERS * figure.get_figwidth()))
    figure.supxlabel(lines, fontsize=7, color=COLORS[5], x=0.01, ha="left")


def check_figure_path(path: Path) -> None:
    """Raise KvistError unless ``path`` ends in a format that a figure can be written in; call it before measuring."""
    if path.suffix.lstrip(".").lower() not in FORMATS:
        raise KvistError(f'can\'t draw into "{path}"; known endings: {", ".join("." + form for form in FORMATS)}')
    if not path.parent.is_dir():
        raise KvistError(f'can\'t draw into "{path}"; there is no directory "{path.parent}"')


def save_figure(figure: Figure, path: Path) -> None:
    """Write ``figure`` to ``path``; its ending chooses the format."""
    check_figure_path(path)
    figure.savefig(path)


def svg_text(figure: Figure, prefix: str) -> str:
    """Return ``figure`` as an SVG element to stand in a page: its text as text, its colours as the page's.

    Series have the page's ``--series-0`` to ``--series-5``, the grid ``--grid``, what is black the page's text colour;
    there is no background. Names inside begin with ``prefix``, so that several figures can stand in one page. The same
    figure gives the same bytes.
    """
    drawn = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix, "path.simplify": False}):
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = drawn.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(xlink:href="|url\()#', rf"\1#{prefix}-", text)
    for number, color in enumerate(COLORS):
        text = text.replace(color, f"var(--series-{number})")
    return _without_size(text.replace(GRID, "var(--grid)").replace("#000000", "currentColor"))


def _without_size(text: str) -> str:
    """The page says how wide a figure is; how high follows from its view box."""
    head, rest = text.split(">", 1)
    head = re.sub(r' (?:width|height|version)="[^"]*"', "", head)
    return f"{head}>{rest}"
