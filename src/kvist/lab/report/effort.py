"""How much is measured for a report: less of it is sooner and shakier."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """``demo_tokens`` are generated with the cache and without; ``lengths`` are those that speed is measured at.

    ``text_tokens`` of text are compared in windows of ``text_context`` for each of ``codecs``, and for the smaller
    caches that ``kept`` tokens make. ``arrivals`` are (passes before it comes, tokens of prompt, tokens to generate).
    """

    demo_tokens: int = 240
    lengths: tuple[int, ...] = (64, 512, 2048)
    repeats: int = 2
    crowd_users: int = 16
    crowd_tokens: int = 24
    text_tokens: int = 2048
    text_context: int = 1024
    kept: int = 256
    codecs: tuple[str, ...] = ("bf16", "int8", "int4")
    arrivals: tuple[tuple[int, int, int], ...] = ((0, 64, 60), (8, 96, 50), (16, 32, 50), (24, 1500, 12), (28, 64, 30))


QUICK = Effort(
    demo_tokens=60,
    lengths=(64, 256),
    repeats=1,
    crowd_users=8,
    crowd_tokens=12,
    text_tokens=384,
    text_context=384,
    kept=128,
    arrivals=((0, 64, 40), (8, 96, 30), (12, 600, 8), (14, 32, 20)),
)
