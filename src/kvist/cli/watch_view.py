"""A frame of ``kvist watch`` in a terminal, and as a line of text where there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvist.lab.watching import CACHED, FREE, LETTERS, SHARED, Attention, Frame, Work
from kvist.units import format_bytes

if TYPE_CHECKING:
    from kvist.engine.result import Result

Spell = Callable[[int], str]
"""The text of a token id."""

_COLORS = ("cyan", "magenta", "yellow", "green", "blue", "red")
_BARS = " ▁▂▃▄▅▆▇█"
_SHOWN_TOKENS = 8
_TEXT_LINES = 3


def color_of(letter: str) -> str:
    """The colour of a request's letter, of shared, cached and free blocks."""
    others = {FREE: "bright_black", CACHED: "white", SHARED: "bold reverse"}
    return others.get(letter) or _COLORS[LETTERS.index(letter) % len(_COLORS)]


@dataclass(frozen=True)
class View:
    """How frames are shown: ``about`` is the first line, ``spell`` gives a token's text, ``width`` are columns."""

    about: str
    spell: Spell
    width: int

    def render(self, frame: Frame, says: str) -> RenderableType:
        """Return everything that is shown of a frame; ``says`` is the line about what happens."""
        return Group(
            Text(self.about, style="bold", no_wrap=True, overflow="ellipsis"),
            Text(says, overflow="fold"),
            Text(),
            *(self._grid(blocks, number, len(frame.blocks)) for number, blocks in enumerate(frame.blocks)),
            self._legend(frame),
            Text(),
            self._requests(frame),
            *([] if frame.attention is None or not frame.attention.weights else self._strip(frame, frame.attention)),
        )

    def _grid(self, blocks: str, number: int, num_groups: int) -> Text:
        """A group's blocks, each a sign."""
        grid = Text(f"layer group {number + 1}\n" if num_groups > 1 else "")
        for start in range(0, len(blocks), self.width):
            for sign in blocks[start : start + self.width]:
                grid.append(sign, style=color_of(sign))
            grid.append("\n" if start + self.width < len(blocks) else "")
        return grid

    def _legend(self, frame: Frame) -> Text:
        usage, counts = frame.usage, frame.counts
        text = Text()
        text.append(f"{FREE} free {counts['free']}", style=color_of(FREE))
        text.append(f"   {CACHED} cached {counts['cached']}", style=color_of(CACHED))
        text.append(f"   used {counts['used']}, {SHARED} by several\n")
        text.append(
            f"{format_bytes(usage.allocated_bytes)} used, {format_bytes(usage.cached_bytes)} cached, of "
            f"{format_bytes(usage.pool_bytes)} reserved; {usage.waste:.1%} of what is used is empty; "
            f"hit rate {frame.hit_rate:.0%}"
        )
        return text

    def _requests(self, frame: Frame) -> RenderableType:
        table = Table(box=None, pad_edge=False, expand=False, padding=(0, 2, 0, 0))
        for name in ("", "prompt", "hit", "answer", "first", "each", "text"):
            table.add_column(name, justify="left" if name in ("", "text") else "right", no_wrap=name != "text")
        for letter, result in frame.results:
            table.add_row(Text(letter, style=color_of(letter)), *self._row(result))
        return table

    def _row(self, result: Result) -> list[str]:
        room = max(20, self.width - 50) * _TEXT_LINES
        text = " ".join(result.text.split())
        return [
            str(result.prompt_tokens),
            str(result.cached_tokens),
            str(result.generated_tokens),
            "-" if result.ttft_s is None else f"{1e3 * result.ttft_s:.0f} ms",
            "-" if result.tpot_s is None else f"{1e3 * result.tpot_s:.1f} ms",
            text if len(text) <= room else "…" + text[-room + 1 :],
        ]

    def _strip(self, frame: Frame, attention: Attention) -> list[RenderableType]:
        """Bars over the tokens, and the tokens with the most weight."""
        letter = attention.letter
        (work,) = [work for work in frame.works if work.letter == letter]
        newest = self.spell(work.token_ids[-1])
        title = Text(f"\nattention of {letter}'s token {newest!r} at {attention.positions[-1]}", style=color_of(letter))
        title.append(f", layer {attention.layer}, head {attention.head}", style="")
        tops = ", ".join(f"{weight:.0%} {self.spell(token)!r} at {at}" for at, token, weight in attention.top(5))
        return [title, Text(bars(attention.weights, self.width), style=color_of(letter)), Text(tops)]


def bars(weights: tuple[float, ...], width: int) -> str:
    """A bar a token, or where there are more than ``width`` for some together: the largest; height is the root of it.

    The root, since a few tokens get nearly all weight, and the others are to be seen at all.
    """
    count = min(width, len(weights))
    edges = [len(weights) * number // count for number in range(count + 1)]
    largest = [max(weights[start:end]) for start, end in pairwise(edges)]
    top = max(largest)
    return "".join(_BARS[round((len(_BARS) - 1) * (weight / top) ** 0.5)] for weight in largest)


def steps(frame: Frame, spell: Spell) -> list[str]:
    """What the pass did, one thing after the other, in words."""
    said = []
    for work in frame.works:
        name, last = work.letter, work.position + len(work.token_ids) - 1
        shown = _shown(work, spell)
        if work.is_prefill:
            where = f"positions {work.position} to {last}" if last > work.position else f"position {last}"
            said.append(f"{name} prefill: {len(work.token_ids)} tokens of the prompt enter at {where}: {shown}")
        else:
            said.append(f"{name} decode: the token at position {last} enters: {shown}")
        said.append(f"{name} append: keys and values are written, the last into block {work.block}, place {work.place}")
        said.append(f"{name} attend: the newest token looks at {work.num_seen} keys in the cache, its own among them")
        if work.chosen is not None:
            said.append(f"{name} choose: the next token is {spell(work.chosen)!r}")
    return said


def line(frame: Frame, spell: Spell) -> str:
    """A pass as one line of text."""
    done = "; ".join(_brief(work, spell) for work in frame.works)
    counts = ", ".join(f"{count} {name}" for name, count in frame.counts.items())
    return f"pass {frame.number}: {done} | blocks: {counts} | {format_bytes(frame.usage.allocated_bytes)}"


def _brief(work: Work, spell: Spell) -> str:
    kind = f"prefill {len(work.token_ids)} at {work.position}" if work.is_prefill else f"decode {work.position}"
    return f"{work.letter} {kind}" + ("" if work.chosen is None else f" -> {spell(work.chosen)!r}")


def _shown(work: Work, spell: Spell) -> str:
    texts = [repr(spell(token_id)) for token_id in work.token_ids[:_SHOWN_TOKENS]]
    return " ".join(texts) + (" …" if len(work.token_ids) > _SHOWN_TOKENS else "")
