"""The figures of the benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvist.lab.bench_cache import CacheBench
from kvist.lab.figures import COLORS, Figure, add_caption, new_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvist.lab.bench_schedule import Round

SMOOTHED_TOKENS = 9


def draw_cache(bench: CacheBench, caption: str) -> Figure:
    """Milliseconds a token against its position, with the cache and without."""
    figure, (axis,) = new_figure(title=f"The KV cache: same tokens, {bench.ratio:.0f} times faster")
    positions = bench.positions[1:]  # the first token's time is the prompt's
    for times, color, name in (
        (bench.uncached_token_s, COLORS[1], "without: every token computes the whole prefix"),
        (bench.cached_token_s, COLORS[0], "with: every token computes itself"),
    ):
        axis.plot(positions, [1e3 * time for time in times[1:]], color=color, alpha=0.25, linewidth=0.8)
        axis.plot(positions, [1e3 * time for time in smoothed(times[1:])], color=color, linewidth=1.8, label=name)
    axis.set_xlabel("position of the token")
    axis.set_ylabel("milliseconds a token")
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False, loc="upper left")
    add_caption(figure, caption)
    return figure


def draw_schedule(found: Round, users: int, caption: str) -> Figure:
    """Every wait for a next token against time, before and after a long prompt came."""
    figure, (axis,) = new_figure(title=f"{users} users, and a prompt of {found.prompt_tokens:,} tokens")
    at, gaps = zip(*found.gaps, strict=True)
    axis.axvspan(0, found.prefill_s, color=COLORS[3], alpha=0.12, linewidth=0, label="the prompt is computed")
    axis.scatter(at, [1e3 * gap for gap in gaps], s=5, color=COLORS[0], linewidths=0, label="a wait for a token")
    for times, style in ((1, "-"), (4, "--")):
        name = "median of the users alone" if times == 1 else f"{times} times that"
        axis.axhline(times * 1e3 * found.median_gap_s, color=COLORS[5], linewidth=1, linestyle=style, label=name)
    axis.set_xlabel("seconds since the prompt came")
    axis.set_ylabel("milliseconds since the token before")
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False, fontsize=8, loc="upper left")
    share = f"the prompt ran at {found.prefill_share:.0%} of its rate alone"
    add_caption(figure, f"{caption}; {share}")
    return figure


def smoothed(times: Sequence[float]) -> list[float]:
    """Return the running median over some neighbours, fewer at the ends."""
    reach = SMOOTHED_TOKENS // 2
    windows = (sorted(times[max(0, n - reach) : n + reach + 1]) for n in range(len(times)))
    return [window[len(window) // 2] for window in windows]
