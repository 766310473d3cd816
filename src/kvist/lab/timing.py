"""Timing a piece of work: warmed up, repeated, told as a median with its spread. Knows nothing of what it times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter


@dataclass(frozen=True)
class Timing:
    """Seconds of each repetition, in the order in which they ran."""

    samples_s: tuple[float, ...]

    def __post_init__(self) -> None:
        assert self.samples_s and min(self.samples_s) >= 0, self.samples_s

    @property
    def median_s(self) -> float:
        return quantile(self.samples_s, 0.5)

    @property
    def low_s(self) -> float:
        """What a tenth of the repetitions stayed below."""
        return quantile(self.samples_s, 0.1)

    @property
    def high_s(self) -> float:
        """What a tenth of the repetitions went above."""
        return quantile(self.samples_s, 0.9)

    def as_json(self) -> dict[str, float | int]:
        return {"median_s": self.median_s, "p10_s": self.low_s, "p90_s": self.high_s, "repeats": len(self.samples_s)}


def quantile(samples: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the samples lie, between the two nearest in proportion."""
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def measure(
    work: Callable[[], object], *, repeats: int, warmup: int = 1, reset: Callable[[], object] | None = None
) -> Timing:
    """Run ``work`` ``warmup`` times unmeasured and ``repeats`` times measured, ``reset`` unmeasured after each."""
    samples: list[float] = []
    for _ in range(warmup + repeats):
        started = perf_counter()
        work()
        samples.append(perf_counter() - started)
        if reset is not None:
            reset()
    return Timing(tuple(samples[warmup:]))
