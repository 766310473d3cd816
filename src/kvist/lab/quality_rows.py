"""What an evaluation says of each way of keeping the cache: a row of the table and of the document."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from math import exp

from kvist.lab.quality import Work
from kvist.lab.quality_state import EvalState, Losses
from kvist.lab.timing import quantile
from kvist.spec.cache import CacheSpec, bytes_per_token
from kvist.spec.model import ModelSpec


@dataclass(frozen=True)
class Row:
    """What one way of keeping the cache takes and costs.

    ``num_bytes`` are allocated for a sequence of the context's length. ``perplexity_change`` is relative to the
    reference's perplexity. ``kl_mean`` and ``kl_p99`` are in nats a token. ``needle`` is the share of the pass keys'
    tokens found, over all depths; None where none was hidden. ``tpot_s`` is None where no decode was timed.
    """

    spec: CacheSpec
    bytes_per_token: int
    num_bytes: int
    perplexity: float
    perplexity_change: float
    kl_mean: float
    kl_p99: float
    top1_agreement: float
    tpot_s: float | None
    needles: tuple[tuple[float, float], ...]

    @property
    def name(self) -> str:
        """How keys and values are written, in a word: ``int8``, ``int8/int4``, with ``*`` where layers are kept."""
        k, v, kept = self.spec.k_codec, self.spec.v_codec, "*" if self.spec.keep_layers else ""
        return (k if k == v else f"{k}/{v}") + kept

    @property
    def retention(self) -> str:
        return str(self.spec.retention)

    @property
    def needle(self) -> float | None:
        return sum(score for _, score in self.needles) / len(self.needles) if self.needles else None

    def as_json(self) -> dict[str, object]:
        return {
            "k": self.spec.k_codec,
            "v": self.spec.v_codec,
            "keep_layers": list(self.spec.keep_layers),
            "retention": self.retention,
            "bytes_per_token": self.bytes_per_token,
            "bytes": self.num_bytes,
            "perplexity": self.perplexity,
            "perplexity_change": self.perplexity_change,
            "kl_mean": self.kl_mean,
            "kl_p99": self.kl_p99,
            "top1_agreement": self.top1_agreement,
            "tpot_s": self.tpot_s,
            "needle": self.needle,
            "needle_depths": [{"depth": depth, "score": score} for depth, score in self.needles],
        }


def reference_perplexity(work: Work, state: EvalState) -> float:
    return _perplexity(state.windows(None, len(work.windows)))


def row(model: ModelSpec, spec: CacheSpec, work: Work, state: EvalState, num_threads: int) -> Row:
    """Return what a complete ``state`` says of ``spec``; its time is that on ``num_threads``."""
    windows = state.windows(spec, len(work.windows))
    divergences = [kl for window in windows for kl in window.kl]
    perplexity = _perplexity(windows)
    return Row(
        spec=spec,
        bytes_per_token=bytes_per_token(model, spec),
        num_bytes=windows[0].allocated_bytes,
        perplexity=perplexity,
        perplexity_change=perplexity / reference_perplexity(work, state) - 1,
        kl_mean=sum(divergences) / len(divergences),
        kl_p99=quantile(divergences, 0.99),
        top1_agreement=sum(window.num_same_top for window in windows) / len(divergences),
        tpot_s=state.tpot_s(spec, num_threads),
        needles=tuple((needle.depth, state.needle(spec, number)) for number, needle in enumerate(work.needles)),
    )


def _perplexity(windows: Many[Losses]) -> float:
    return exp(sum(window.nll_sum for window in windows) / sum(len(window.kl) for window in windows))
