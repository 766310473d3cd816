"""Users who ask an engine at once, and when each of them got each token. What the serving benchmarks have in common.

Prompts are made-up token ids, since which ones changes no speed. Each crowd has a salt of its own, so that no run finds
what an earlier one has left in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise

from kvist.engine.engine import Engine
from kvist.engine.request import Request, SamplingParams
from kvist.engine.ticket import Ticket
from kvist.lab.timing import quantile

LOOK_EVERY = 5
"""Steps from one look at the pool, which takes some hundred us, to the next; shares no divisor with a block."""

_SALTS = count()


def made_up_ids(vocab_size: int, num_tokens: int, user: int = 0) -> tuple[int, ...]:
    """Return token ids that differ between users from the first one on."""
    return tuple((7919 * number + 104_729 * user + 1) % vocab_size for number in range(num_tokens))


def new_salt() -> str:
    """Return a salt that no crowd has had."""
    return f"bench {next(_SALTS)}"


def greedy(max_tokens: int, *, speculation: int = 0) -> SamplingParams:
    """Exactly so many tokens, the likeliest ones."""
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, speculation=speculation)


@dataclass
class Record:
    """One user: ``asked_s`` and the time of each token, in the engine's seconds."""

    ticket: Ticket
    asked_s: float
    token_s: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        return self.token_s[0] - self.asked_s

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between one token and the next."""
        return [after - before for before, after in pairwise(self.token_s)]


@dataclass(frozen=True)
class Step:
    """One pass: when it began and ended, how many tokens came of it; blocks in use and their waste at the last look."""

    start_s: float
    end_s: float
    num_tokens: int
    num_blocks: int
    waste: float

    @property
    def block_s(self) -> float:
        """Blocks times the seconds that they were in use."""
        return self.num_blocks * (self.end_s - self.start_s)


class Crowd:
    """Requests under way in an engine that nobody else uses. ``steps`` are all passes so far."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.records: list[Record] = []
        self.steps: list[Step] = []
        self._by_id: dict[int, Record] = {}
        self._num_blocks, self._waste = 0, 0.0

    def ask(self, request: Request) -> Record:
        """Add a request; it is served by the steps that follow."""
        record = Record(self.engine.add(request), self.engine.clock())
        self.records.append(record)
        self._by_id[record.ticket.id] = record
        return record

    def step(self) -> Step:
        """Do one pass and note whose tokens came."""
        start_s = self.engine.clock()
        events = self.engine.step()
        end_s = self.engine.clock()
        for event in events:
            self._by_id[event.request_id].token_s.append(end_s)
        if len(self.steps) % LOOK_EVERY == 0:
            stats = self.engine.stats()
            self._num_blocks, self._waste = stats.blocks_used, stats.waste
        self.steps.append(Step(start_s, end_s, len(events), self._num_blocks, self._waste))
        return self.steps[-1]

    def run(self, until: Callable[[], bool] = bool) -> Iterator[Step]:
        """Step until ``until``, or until all have ended; raises what went wrong with any."""
        while self.engine.has_work and not until():
            yield self.step()
        for record in self.records:
            if record.ticket.error is not None:
                raise record.ticket.error

    def finish(self) -> None:
        """Step until all have ended."""
        for _ in self.run():
            pass

    def cancel(self) -> None:
        """End all that haven't ended."""
        for record in self.records:
            if not record.ticket.is_finished:
                self.engine.cancel(record.ticket.id)

    @property
    def wall_s(self) -> float:
        """Seconds from the first request to the end of the last step."""
        return self.steps[-1].end_s - min(record.asked_s for record in self.records)

    @property
    def num_generated(self) -> int:
        return sum(len(record.token_s) for record in self.records)

    @property
    def mean_waste(self) -> float:
        """Of all block-seconds in use the share that nothing was in; 0 where no block was seen in use."""
        whole = sum(step.block_s for step in self.steps)
        return sum(step.waste * step.block_s for step in self.steps) / whole if whole else 0.0

    def ttft_s(self, share: float = 0.5) -> float:
        return quantile([record.ttft_s for record in self.records], share)

    def gap_s(self, share: float = 0.5) -> float:
        """The time between tokens that ``share`` of all gaps stay below."""
        return quantile([gap for record in self.records for gap in record.gaps_s], share)
