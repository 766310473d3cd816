"""What drafting from repeated text saves, and that it changes no bit: each sample with it and without, in turns.

The samples (``lab.samples``) were chosen before there was a drafter. Their answers are shown, so that everybody can see
that none is a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvist.engine.request import Request
from kvist.engine.result import Result
from kvist.engine.running import run_all
from kvist.errors import RequestError
from kvist.lab.crowd import new_salt
from kvist.lab.samples import SAMPLES, Sample
from kvist.lab.timing import Timing, quantile
from kvist.llm import LLM

DRAFT_TOKENS = 11
"""With the row that is there anyway twelve: a pass of more costs more a row (``kernels.target``)."""
REPEATS = 5


@dataclass(frozen=True)
class Speculated:
    """One sample. ``plain_s`` and ``drafted_s`` are seconds a token of each repetition, taken in turns."""

    sample: Sample
    plain: Result
    drafted: Result
    plain_s: tuple[float, ...]
    drafted_s: tuple[float, ...]

    @property
    def is_identical(self) -> bool:
        """Whether tokens and all logits that they were chosen from are the same bytes."""
        same_tokens = self.plain.token_ids == self.drafted.token_ids
        return same_tokens and self.plain.logits_sha256 == self.drafted.logits_sha256

    @property
    def speedup(self) -> float:
        """How many times fewer seconds a token takes: the median over neighbouring runs of both."""
        return quantile([plain / drafted for plain, drafted in zip(self.plain_s, self.drafted_s, strict=True)], 0.5)

    @property
    def acceptance(self) -> float | None:
        """The share of drafted tokens that were right; None where none was drafted."""
        return self.drafted.accepted_tokens / self.drafted.drafted_tokens if self.drafted.drafted_tokens else None

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.sample.name,
            "repeats_prompt": self.sample.repeats,
            "prompt_tokens": self.plain.prompt_tokens,
            "generated_tokens": self.plain.generated_tokens,
            "tpot_s": quantile(self.plain_s, 0.5),
            "speculative_tpot_s": quantile(self.drafted_s, 0.5),
            "speedup": self.speedup,
            "tpot_spread": Timing(self.plain_s).as_json(),
            "speculative_tpot_spread": Timing(self.drafted_s).as_json(),
            "drafted_tokens": self.drafted.drafted_tokens,
            "accepted_tokens": self.drafted.accepted_tokens,
            "acceptance": self.acceptance,
            "identical": self.is_identical,
            "logits_sha256": self.plain.logits_sha256,
            "text": self.plain.text,
        }


@dataclass(frozen=True)
class SpeculationBench:
    """All samples; ``draft_tokens`` at most are guessed at a time."""

    draft_tokens: int
    samples: tuple[Speculated, ...]

    @property
    def is_identical(self) -> bool:
        return all(found.is_identical for found in self.samples)

    def least_speedup(self, *, repeats: bool) -> float | None:
        """The smallest speedup of the samples whose answers repeat the prompt, or of the others."""
        return min((found.speedup for found in self.samples if found.sample.repeats == repeats), default=None)

    def as_json(self) -> dict[str, object]:
        return {
            "draft_tokens": self.draft_tokens,
            "identical": self.is_identical,
            "least_speedup_repeating": self.least_speedup(repeats=True),
            "least_speedup_other": self.least_speedup(repeats=False),
            "samples": [found.as_json() for found in self.samples],
        }


def bench_speculation(
    llm: LLM,
    samples: Sequence[Sample] = SAMPLES,
    *,
    draft_tokens: int = DRAFT_TOKENS,
    repeats: int = REPEATS,
    on_sample: Callable[[Speculated], object] = bool,
) -> SpeculationBench:
    """Answer each sample with and without drafts; ``on_sample`` hears of each.

    Raises RequestError for ``draft_tokens`` out of range, or a model without a chat template.
    """
    if draft_tokens < 1:
        raise RequestError(f"draft_tokens must be at least 1, got {draft_tokens}")
    found = []
    for sample in samples:
        found.append(_measured(llm, sample, draft_tokens, repeats))
        on_sample(found[-1])
    return SpeculationBench(draft_tokens, tuple(found))


def _measured(llm: LLM, sample: Sample, draft_tokens: int, repeats: int) -> Speculated:
    prompt, salt = tuple(llm.files.encode_chat([{"role": "user", "content": sample.prompt}])), new_salt()

    def answer(speculation: int, *, has_digest: bool = False) -> Result:
        request = Request(prompt, sample.params(speculation), has_digest=has_digest, salt=salt)
        return run_all(llm.engine, [request], show=False)[0]

    plain, drafted = answer(0, has_digest=True), answer(draft_tokens, has_digest=True)  # these warm up, too
    times = [(_tpot_s(answer(0)), _tpot_s(answer(draft_tokens))) for _ in range(repeats)]
    return Speculated(sample, plain, drafted, *(tuple(each) for each in zip(*times, strict=True)))


def _tpot_s(result: Result) -> float:
    if result.tpot_s is None:
        raise RequestError("the answer has one token: nothing to time; take a longer sample")
    return result.tpot_s
