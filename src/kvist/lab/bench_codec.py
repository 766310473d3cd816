"""What each codec of the cache takes and gains: bytes a token, decode and prefill at several lengths, side by side.

Codecs are measured in turns, a few decode steps or one prompt each, so that what disturbs one disturbs all and the
ratios hold where the machine's speed wanders. Quality is ``lab.quality``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from kvist.errors import KvistError
from kvist.lab.bench_speed import DECODE_ROUNDS, DECODE_STEPS, ModelUnderTest
from kvist.lab.ceiling import BestProbe, Ceiling
from kvist.lab.timing import Timing, measure
from kvist.lab.traffic import kv_bytes
from kvist.model.decoder import Decoder
from kvist.spec.cache import CacheSpec, bytes_per_token
from kvist.spec.model import ModelSpec

DEFAULT_CODECS = "bf16,int8,int4"
QUICK_CODECS = "bf16,int8"
DEFAULT_LENGTHS = (512, 2048, 7000)
QUICK_LENGTHS = (128,)
REPEATS = 2


@dataclass(frozen=True)
class CodecSpeed:
    """One codec at one context length. ``tpot`` is of steps whose median step sees ``context`` tokens; ``ttft`` is of
    a prompt of that length."""

    spec: CacheSpec
    context: int
    tpot: Timing
    ttft: Timing

    @property
    def prefill_tokens_per_s(self) -> float:
        return self.context / self.ttft.median_s


@dataclass(frozen=True)
class CodecBench:
    """Every codec at every length: the first codec is what the others are compared with."""

    model: ModelSpec
    specs: tuple[CacheSpec, ...]
    speeds: tuple[CodecSpeed, ...]
    ceiling: Ceiling

    def first_at(self, context: int) -> CodecSpeed:
        return next(speed for speed in self.speeds if speed.context == context)

    def as_json(self) -> dict[str, object]:
        first = bytes_per_token(self.model, self.specs[0])
        codecs = [
            {
                "k": spec.k_codec,
                "v": spec.v_codec,
                "bytes_per_token": bytes_per_token(self.model, spec),
                "bytes_ratio": bytes_per_token(self.model, spec) / first,
                "lengths": [self._length_json(speed) for speed in self.speeds if speed.spec == spec],
            }
            for spec in self.specs
        ]
        return {"codecs": codecs}

    def _length_json(self, speed: CodecSpeed) -> dict[str, object]:
        first = self.first_at(speed.context)
        return {
            "context": speed.context,
            "kv_bytes": kv_bytes(self.model, speed.spec, speed.context),
            "tpot_s": speed.tpot.median_s,
            "decode_speedup": first.tpot.median_s / speed.tpot.median_s,
            "ttft_s": speed.ttft.median_s,
            "prefill_tokens_per_s": speed.prefill_tokens_per_s,
            "prefill_tokens_per_s_scaled": speed.prefill_tokens_per_s / self.ceiling.matmul_factor,
            "prefill_speedup": first.ttft.median_s / speed.ttft.median_s,
            "tpot_spread": speed.tpot.as_json(),
            "ttft_spread": speed.ttft.as_json(),
        }


def bench_codec(
    decoder: Decoder,
    specs: Sequence[CacheSpec],
    lengths: Sequence[int],
    *,
    probe: BestProbe,
    repeats: int = REPEATS,
    on_speed: Callable[[CodecSpeed], object] = bool,
) -> CodecBench:
    """Measure every length with every codec, and the ceiling after each length; ``on_speed`` hears of each.

    Raises KvistError where a length doesn't fit the model's context.
    """
    most = decoder.context_length - DECODE_STEPS
    for context in lengths:
        if not DECODE_STEPS <= context <= most:
            raise KvistError(
                f"can't measure at a context of {context} tokens; this model takes {DECODE_STEPS} to {most}"
            )
    models = [ModelUnderTest(decoder, spec, max(lengths)) for spec in specs]
    speeds: list[CodecSpeed] = []
    for context in lengths:
        for speed in _measure_length(models, context, repeats):
            speeds.append(speed)
            on_speed(speed)
        probe.measure()
    return CodecBench(decoder.spec, tuple(specs), tuple(speeds), probe.best)


def _measure_length(models: list[ModelUnderTest], context: int, repeats: int) -> list[CodecSpeed]:
    """Decode first: its prompts warm up those that are timed."""
    prompt = models[0].token_ids(context)
    past = prompt[: context - (DECODE_STEPS + DECODE_ROUNDS) // 2]
    tokens = [model.prefill(past) for model in models]
    steps: list[list[float]] = [[] for _ in models]
    for _ in range(DECODE_ROUNDS):
        for model, token_id, found in zip(models, tokens, steps, strict=True):
            found.extend(measure(partial(model.step, token_id), repeats=DECODE_STEPS // DECODE_ROUNDS).samples_s)
    prompts: list[list[float]] = [[] for _ in models]
    for model in models:
        model.reset()
    for _ in range(repeats):
        for model, found in zip(models, prompts, strict=True):
            work = partial(model.prefill, prompt)
            found.extend(measure(work, repeats=1, warmup=0, reset=model.reset).samples_s)
    return [
        CodecSpeed(model.cache_spec, context, Timing(tuple(decoded)), Timing(tuple(filled)))
        for model, decoded, filled in zip(models, steps, prompts, strict=True)
    ]
