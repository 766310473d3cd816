"""How close decode and prefill come to what the machine can do: the ceiling first, then the share of it reached.

Decode reads the weights and the cache once a token, so its ceiling is read bandwidth; prefill multiplies, so its
ceiling is the integer-dot peak. Both are measured in the same run. Memory's speed wanders on shared machines, within
seconds and by half, so the bandwidth is measured again before and after every few decode steps, and a length's share
is of the median of those. The peak is the best of what was measured before the model's turn and after each length: a
ceiling that was disturbed would flatter the share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from kvist.cache.kv_cache import KvCache
from kvist.engine.request import SamplingParams
from kvist.engine.sampling import History, choose_token
from kvist.errors import KvistError
from kvist.lab.ceiling import BestProbe, Ceiling
from kvist.lab.timing import Timing, measure, quantile
from kvist.lab.traffic import bytes_per_step, has_integer_dots, prefill_operations
from kvist.model.decoder import Decoder, Part
from kvist.spec.cache import CacheSpec

DEFAULT_LENGTHS = (64, 512, 2048, 7000)
QUICK_LENGTHS = (64, 512)
DECODE_STEPS = 64
DECODE_ROUNDS = 8
"""A round is a measurement of the bandwidth, a step to warm up, and ``DECODE_STEPS / DECODE_ROUNDS`` measured steps."""

_GREEDY = SamplingParams()


@dataclass(frozen=True)
class LengthSpeed:
    """One context length. ``tpot`` is of steps whose median step sees ``context`` tokens; ``ttft`` is of that prompt.

    ``read_bandwidth`` is what memory gave meanwhile, in bytes a second. ``operations`` are those of the prefill's
    matrix products.
    """

    context: int
    tpot: Timing
    ttft: Timing
    read_bandwidth: float
    bytes_per_step: int
    operations: int

    @property
    def prefill_tokens_per_s(self) -> float:
        return self.context / self.ttft.median_s

    @property
    def share_of_bandwidth(self) -> float:
        return self.bytes_per_step / self.tpot.median_s / self.read_bandwidth

    def share_of_int_dot(self, ceiling: Ceiling) -> float:
        return self.operations / self.ttft.median_s / ceiling.int_dot_peak


@dataclass(frozen=True)
class SpeedBench:
    """All lengths beside the ceiling of the same run. ``is_integer``: the matrices are multiplied as integers.

    Raises KvistError where a share is above 100 %: then the ceiling, and so every share, is wrong.
    """

    ceiling: Ceiling
    lengths: tuple[LengthSpeed, ...]
    is_integer: bool
    weights_bytes: int

    def __post_init__(self) -> None:
        for speed in self.lengths:
            shares = {"read bandwidth": speed.share_of_bandwidth}
            if self.is_integer:
                shares["integer-dot peak"] = speed.share_of_int_dot(self.ceiling)
            for name, share in shares.items():
                if share > 1:
                    raise KvistError(
                        f"at {speed.context} tokens {share:.1%} of the measured {name} was reached, which can't be; "
                        "the ceiling's measurement was disturbed (run it again with nothing beside it), or the model "
                        "is so small that it stays in the processor's cache"
                    )

    def as_json(self) -> dict[str, object]:
        return {
            "weights_bytes": self.weights_bytes,
            "lengths": [self._length_json(speed) for speed in self.lengths],
        }

    def _length_json(self, speed: LengthSpeed) -> dict[str, object]:
        return {
            "context": speed.context,
            "tpot_s": speed.tpot.median_s,
            "bytes_per_step": speed.bytes_per_step,
            "read_bandwidth": speed.read_bandwidth,
            "share_of_bandwidth": speed.share_of_bandwidth,
            "ttft_s": speed.ttft.median_s,
            "prefill_tokens_per_s": speed.prefill_tokens_per_s,
            "prefill_tokens_per_s_scaled": speed.prefill_tokens_per_s / self.ceiling.matmul_factor,
            "operations": speed.operations,
            "share_of_int_dot": speed.share_of_int_dot(self.ceiling) if self.is_integer else None,
            "tpot_spread": speed.tpot.as_json(),
            "ttft_spread": speed.ttft.as_json(),
        }


class ModelUnderTest:
    """A decoder with a cache for one sequence at a time, fed with made-up token ids: which ones changes no speed."""

    def __init__(self, decoder: Decoder, cache_spec: CacheSpec, longest: int) -> None:
        self.decoder = decoder
        self.cache_spec = cache_spec
        self.cache = KvCache(
            decoder.spec, cache_spec, num_tokens=longest + DECODE_STEPS, step_tokens=decoder.step_tokens
        )
        self._history = History(decoder.spec.vocab_size, ())
        self.sequence = self.cache.new_sequence()

    def token_ids(self, num_tokens: int) -> list[int]:
        return [(7919 * number + 1) % self.decoder.spec.vocab_size for number in range(num_tokens)]

    def reset(self) -> None:
        self.sequence.release()
        self.sequence = self.cache.new_sequence()

    def prefill(self, token_ids: Sequence[int]) -> int:
        """Append a prompt in the engine's pieces; return the token that follows."""
        step, last = self.decoder.step_tokens, len(token_ids) - 1
        for start in range(0, len(token_ids), step):
            piece = token_ids[start : start + step]
            logits = self._forward(piece, "last" if start + step > last else "none")
        return self._choose(logits[-1])

    def step(self, token_id: int) -> int:
        """Append one token; return the next."""
        return self._choose(self._forward([token_id], "last")[-1])

    def _forward(self, token_ids: Sequence[int], logits: Literal["last", "none"]) -> npt.NDArray[np.float32]:
        rows = self.decoder.forward([Part(self.sequence, token_ids, logits)], is_copied=False)
        self.sequence.drop_unseen()
        return rows

    def _choose(self, logits: npt.NDArray[np.float32]) -> int:
        return choose_token(logits, _GREEDY, self._history, seed=0, choice=0, position=self.sequence.num_tokens)


def bench_speed(
    decoder: Decoder,
    cache_spec: CacheSpec,
    lengths: Sequence[int],
    *,
    probe: BestProbe,
    repeats: int = 3,
    on_length: Callable[[LengthSpeed], object] | None = None,
) -> SpeedBench:
    """Measure each length, and the ceiling after it; ``on_length`` hears of each.

    Raises KvistError where a length doesn't fit the model's context, and for shares above 100 %.
    """
    for context in lengths:
        if not DECODE_STEPS <= context <= decoder.context_length - DECODE_STEPS:
            raise KvistError(
                f"can't measure at a context of {context} tokens; this model takes {DECODE_STEPS} to "
                f"{decoder.context_length - DECODE_STEPS}"
            )
    model = ModelUnderTest(decoder, cache_spec, max(lengths))
    speeds: list[LengthSpeed] = []
    for context in lengths:
        speeds.append(_measure_length(model, context, repeats, probe))
        probe.measure()
        if on_length is not None:
            on_length(speeds[-1])
    return SpeedBench(probe.best, tuple(speeds), has_integer_dots(decoder), decoder.weights_bytes)


def _measure_length(model: ModelUnderTest, context: int, repeats: int, probe: BestProbe) -> LengthSpeed:
    prompt = model.token_ids(context)
    ttft = measure(lambda: model.prefill(prompt), repeats=repeats, warmup=1, reset=model.reset)
    token_id = model.prefill(prompt[: context - (DECODE_STEPS + DECODE_ROUNDS) // 2])
    tpot, bandwidth = _measure_decode(lambda: model.step(token_id), probe)
    model.reset()
    return LengthSpeed(
        context,
        tpot,
        ttft,
        bandwidth,
        bytes_per_step(model.decoder, model.cache_spec, context),
        prefill_operations(model.decoder, context),
    )


def _measure_decode(step: Callable[[], object], probe: BestProbe) -> tuple[Timing, float]:
    """Time steps in rounds; return them with the median of the rounds' bandwidths, the better of before and after."""
    samples: list[float] = []
    bandwidths = [probe.read_bandwidth()]
    for _ in range(DECODE_ROUNDS):
        samples += measure(step, repeats=DECODE_STEPS // DECODE_ROUNDS, warmup=1).samples_s
        bandwidths.append(probe.read_bandwidth())
    return Timing(tuple(samples)), quantile([max(pair) for pair in pairwise(bandwidths)], 0.5)
