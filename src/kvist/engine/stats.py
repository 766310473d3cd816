"""What an engine has done and how it stands: histograms of times, and gauges of the pool. One place, one clock."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import asdict, dataclass

from kvist.cache.kv_cache import KvCache
from kvist.engine.answer import Answer
from kvist.engine.scheduler import Scheduler

BUCKETS_S = (
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75,
    1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0,
)  # fmt: skip
"""Upper ends of a histogram's buckets in seconds; what is longer is in one more."""


class Histogram:
    """Counts of times by bucket, their number and their sum."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS_S) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(BUCKETS_S, seconds)] += 1
        self._sum_s += seconds

    def snapshot(self) -> Times:
        return Times(tuple(self._counts), self._sum_s)


@dataclass(frozen=True)
class Times:
    """A histogram as it stands. ``counts[i]`` are times up to ``BUCKETS_S[i]``, the last one those beyond."""

    counts: tuple[int, ...]
    sum_s: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean_s(self) -> float | None:
        return self.sum_s / self.count if self.count else None

    def quantile_s(self, share: float) -> float | None:
        """The end of the bucket below which ``share`` of the times lie; None where there are none, or it has no end."""
        left = share * self.count
        for end, number in zip(BUCKETS_S, self.counts, strict=False):
            left -= number
            if left <= 0 and self.count:
                return end
        return None

    def as_json(self) -> dict[str, object]:
        return {"count": self.count, "sum_s": self.sum_s, "buckets_s": list(BUCKETS_S), "counts": list(self.counts)}


@dataclass(frozen=True)
class Stats:
    """How an engine stands. Blocks are counted over all layer groups.

    ``waste``: the share of the used blocks' bytes that nothing is in. ``hit_rate``: of all prompts' tokens those that
    were found in the cache.
    """

    num_running: int
    num_waiting: int
    num_finished: int
    num_steps: int
    num_preemptions: int
    num_evictions: int
    blocks_free: int
    blocks_cached: int
    blocks_used: int
    waste: float
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    forward_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    queue: Times
    ttft: Times
    tpot: Times
    itl: Times

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def as_json(self) -> dict[str, object]:
        found = {name: value for name, value in asdict(self).items() if not isinstance(value, dict)}
        times = {"queue_s": self.queue, "ttft_s": self.ttft, "tpot_s": self.tpot, "itl_s": self.itl}
        return found | {"hit_rate": self.hit_rate} | {name: each.as_json() for name, each in times.items()}


class Counters:
    """What is counted as it happens."""

    def __init__(self) -> None:
        self.queue, self.ttft, self.tpot, self.itl = Histogram(), Histogram(), Histogram(), Histogram()
        self.num_finished = self.prompt_tokens = self.cached_tokens = 0
        self.generated_tokens = self.forward_tokens = self.drafted_tokens = self.accepted_tokens = 0

    def note_token(self, answer: Answer, before_s: float | None, now_s: float) -> None:
        """A token has come; the one before it came at ``before_s`` (None: it is the first)."""
        self.generated_tokens += 1
        if before_s is None:
            self.ttft.observe(now_s - answer.added_s)
        else:
            self.itl.observe(now_s - before_s)

    def note_end(self, answer: Answer) -> None:
        """An answer has ended, in whichever way."""
        self.num_finished += 1
        if answer.admitted_s is None:
            return
        self.queue.observe(answer.admitted_s - answer.added_s)
        self.prompt_tokens += answer.num_prompt
        self.cached_tokens += answer.num_cached
        self.drafted_tokens += answer.num_drafted
        self.accepted_tokens += answer.num_accepted
        if answer.first_s is not None and answer.num_generated > 1:
            self.tpot.observe((answer.last_s - answer.first_s) / (answer.num_generated - 1))

    def snapshot(self, cache: KvCache, scheduler: Scheduler) -> Stats:
        """Return the numbers as they are now."""
        usage = cache.usage()
        return Stats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_finished=self.num_finished,
            num_steps=scheduler.num_steps,
            num_preemptions=scheduler.num_preemptions,
            num_evictions=usage.num_evicted_blocks,
            blocks_free=usage.num_free_blocks,
            blocks_cached=usage.num_cached_blocks,
            blocks_used=usage.num_used_blocks,
            waste=usage.waste,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            generated_tokens=self.generated_tokens,
            forward_tokens=self.forward_tokens,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
            queue=self.queue.snapshot(),
            ttft=self.ttft.snapshot(),
            tpot=self.tpot.snapshot(),
            itl=self.itl.snapshot(),
        )
