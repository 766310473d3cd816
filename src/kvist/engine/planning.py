"""One step's plan as it takes shape. Reads the answers, the pools and the cost model, and writes to itself alone.

The order: a row for everyone who is running, the oldest first, taking blocks from the youngest where they run out;
then drafts; then more rows for prompts, within the time that those who decode can be made to wait; then new requests.
Up to half of the time for prompts goes to brief ones, running or new, before the oldest prompt gets the rest: who asks
a short question doesn't wait for a long text to be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from kvist.cache.kv_cache import KvCache
from kvist.engine.answer import Answer
from kvist.engine.cost import CostModel, Load, decode_load, prefill_load
from kvist.engine.plan import Feed, Plan
from kvist.engine.policy import Policy, Running
from kvist.engine.prospect import Prospect, Prospects
from kvist.engine.room import Room
from kvist.engine.speculation import NO_DRAFT, Draft
from kvist.engine.values import finite_number, whole_number
from kvist.errors import SpecError
from kvist.spec.cache import BLOCK_TOKENS, num_blocks


@dataclass(frozen=True)
class Settings:
    """How steps are made.

    ``stretch``: a step with users that decode may take this many times as long as one of theirs would have taken
    without prompts, in the middle of the time since the oldest of these came; or will take once all are decoding who
    came before them.
    ``least_rows`` of the oldest prompt are computed in each step whatever that takes, so that it ends.
    ``max_running`` answers hold blocks at most; None: as many as a pass has rows.

    Raises SpecError for a value of another kind, or out of its range.
    """

    stretch: float = 3.4
    least_rows: int = 4
    max_running: int | None = None

    def __post_init__(self) -> None:
        finite_number("stretch", self.stretch, "0 or more", least=0, error=SpecError)
        whole_number("least_rows", self.least_rows, "at least 1", least=1, error=SpecError)
        if self.max_running is not None:
            whole_number("max_running", self.max_running, "at least 1, or None", least=1, error=SpecError)


DEFAULT_SETTINGS = Settings()

BRIEF = 4
"""A prompt is brief beside one that has so many times as much left to compute."""


class Planning:
    """``running`` in the order of their admission, ``waiting`` in that in which they are to be served."""

    def __init__(
        self,
        cache: KvCache,
        prospects: Prospects,
        cost: CostModel,
        policy: Policy,
        settings: Settings,
        *,
        step_tokens: int,
        step: int,
        running: Iterable[Answer],
        waiting: Iterable[Answer],
    ) -> None:
        self._cost, self._policy, self._settings = cost, policy, settings
        self._prospects, self._step = prospects, step
        self._running = list(running)
        self._waiting = waiting
        self._room = Room(cache)
        self._rows: dict[Answer, int] = {}  # of those that go on running, in the order of their admission
        self._drafts: dict[Answer, Draft] = {}
        self._preempted: list[Answer] = []
        self._admitted: list[Answer] = []
        self._names: set[bytes] = set()  # of the blocks that those will compute
        self._hurried: set[Answer] = set()
        self._rows_left = step_tokens
        self._most_running = min(settings.max_running or step_tokens, step_tokens)
        self._load = Load()
        self._limit_s = float("inf")

    def plan(self) -> Plan:
        """Return the plan; called once."""
        self._keep_running()
        decoding = [answer for answer in self._rows if answer.is_decoding]
        prompts = [answer for answer in self._rows if not answer.is_decoding] if len(decoding) < len(self._rows) else []
        if decoding:
            self._load = decode_load(len(decoding), sum(answer.num_held for answer in decoding))
            calm = self._calm_load(decoding, prompts).plus(self._company(decoding, prompts))
            self._limit_s = self._settings.stretch * self._cost.predict(calm)
        self._draft([answer for answer in decoding if answer.drafter is not None], len(decoding))
        if prompts and prompts[0].num_left > BRIEF * self._settings.least_rows:
            self._hurry(prompts)
        for number, answer in enumerate(prompts):
            if answer not in self._hurried:
                self._prefill(answer, answer.num_held, is_oldest=number == 0)
        if not self._preempted:
            self._admit(is_oldest=not prompts)
        return self._result(decoding, prompts)

    # ---- a row for everyone that runs ------------------------------------------------------------------------------

    def _keep_running(self) -> None:
        """Give each running answer the blocks of one row, at the cost of the victims that the policy names."""
        is_plain = not any(answer.retention.is_scored for answer in self._running)
        if is_plain and self._room.has_a_row_for(len(self._running)):  # no need to look at each of them
            self._room.take_a_row_for(len(self._running))
            self._rows = dict.fromkeys(self._running, 1)
            self._rows_left -= len(self._running)
            return
        gone: set[Answer] = set()
        victims = self._victims()
        for answer in self._running:
            while answer not in gone and not self._room.fits(answer.held, 1):
                victim = next((found for found in victims if found not in gone), None)
                assert victim is not None, (answer.num_held, self._room.available, "the oldest doesn't fit alone")
                gone.add(victim)
                self._preempt(victim)
            if answer not in gone:
                self._room.grow(answer.held, 1)
                self._rows[answer] = 1
                self._rows_left -= 1

    def _victims(self) -> Iterator[Answer]:
        by_admission = {answer.admission: answer for answer in self._running}
        facts = [Running(answer.admission, answer.request.priority, answer.num_held) for answer in self._running]
        return (by_admission[found.admission] for found in self._policy.victims(facts))

    def _preempt(self, victim: Answer) -> None:
        """Take back what ``victim`` holds, and what this plan had given it."""
        if self._rows.pop(victim, 0):
            self._rows_left += 1
        self._room.release(victim.held)
        self._preempted.append(victim)

    def _calm_load(self, decoding: list[Answer], prompts: list[Answer]) -> Load:
        """What those who decode would have had to compute, halfway since the oldest of ``prompts`` came, without it.

        They have had a token in each step since, and read more now than then: alone they would wait longer, too.
        """
        num_steps = (self._step - prompts[0].admission_step) // 2 if prompts else 0
        num_before = sum(max(answer.num_prompt, answer.num_held - num_steps) for answer in decoding)
        return decode_load(len(decoding), num_before)

    def _company(self, decoding: list[Answer], prompts: list[Answer]) -> Load:
        """The decodes of those who were there before the first of ``decoding`` was let in, as far as they fit.

        Who comes in a crowd can expect steps of the whole crowd. Measured by those few who decode already, the prompts
        of all others would be computed in small pieces, which takes everybody longer.
        """
        oldest = min(decoding, key=lambda answer: answer.admission)
        waiting = islice(self._waiting, max(0, self._most_running - len(self._rows)))
        company = [answer for answer in (*prompts, *waiting) if answer.arrival_step < oldest.admission_step]
        left, num_tokens, number = min(self._room.available), 0, 0
        for answer in company:
            left -= num_blocks(len(answer.context)) if answer.sequence is None else 0
            if left < 0:
                break
            num_tokens, number = num_tokens + len(answer.context), number + 1
        return decode_load(number, num_tokens)

    # ---- drafts ----------------------------------------------------------------------------------------------------

    def _draft(self, asking: list[Answer], num_decoding: int) -> None:
        """Add drafts behind the rows of those that asked for them, where they are worth their rows."""
        for answer in asking:
            most = min(answer.most_drafted, self._rows_left)
            if answer.drafter is None or most < 1:
                continue
            draft = answer.drafter.draft(most)
            if not draft.token_ids:
                continue
            step_s = self._cost.predict(self._load)
            row_s = self._cost.predict(self._load.plus(Load(1, answer.num_held, 1))) - step_s
            draft = answer.drafter.cut(draft, step_s / num_decoding, row_s)
            length = len(draft.token_ids)
            while length and not self._room.fits(answer.held, 1 + length):
                length -= 1
            if length:
                self._room.grow(answer.held, 1 + length)
                self._drafts[answer] = draft._replace(token_ids=draft.token_ids[:length])
                self._rows_left -= length
                reads = length * (answer.num_held + 1) + length * (length + 1) // 2
                self._load = self._load.plus(Load(length, reads, length))

    # ---- prompts ---------------------------------------------------------------------------------------------------

    def _hurry(self, prompts: list[Answer]) -> None:
        """Give half of the time and the rows that are left for prompts to those that are brief beside the oldest."""
        oldest, *others = prompts
        rows, limit_s = self._rows_left, self._limit_s
        self._rows_left = rows // 2
        self._limit_s = (self._cost.predict(self._load) + limit_s) / 2
        for answer in sorted(others, key=lambda answer: answer.num_left):
            if _is_brief(answer, answer.num_left, oldest):
                self._prefill(answer, answer.num_held, is_oldest=False)
                self._hurried.add(answer)
        if not self._preempted:
            self._admit(is_oldest=False, beside=oldest)
        self._rows_left += rows - rows // 2
        self._limit_s = limit_s

    def _prefill(self, answer: Answer, position: int, is_oldest: bool) -> None:
        """Give ``answer``, which has the blocks of one row, as many rows as time and blocks allow."""
        most = min(answer.num_left, self._rows_left + 1, answer.rows_to_stop(position))
        in_time = self._cost.rows_within(self._load, self._limit_s, position, most)
        count = max(in_time, min(most, self._settings.least_rows if is_oldest else 1))
        while count > 1 and not self._room.fits(answer.held, count):
            count = _block_less(position, count)
        self._room.grow(answer.held, count)
        self._rows[answer] = count
        self._rows_left -= count - 1
        self._load = self._load.plus(prefill_load(position, count, int(count == answer.num_left)))

    # ---- new ones --------------------------------------------------------------------------------------------------

    def _admit(self, is_oldest: bool, beside: Answer | None = None) -> None:
        """Let waiting requests in, the most urgent first, until one doesn't fit: nobody overtakes it for that.

        With ``beside`` only as long as they are brief beside that one.
        """
        num_running = sum(1 + len(answer.followers) for answer in self._rows)
        for answer in self._waiting:
            if answer in self._rows:
                continue
            num_running += 1 + len(answer.followers)
            prospect = self._prospects.of(answer)
            if beside is not None and not _is_brief(answer, len(answer.context) - prospect.num_tokens, beside):
                return
            if self._is_computed_elsewhere(prospect):
                continue
            if self._rows_left < 1 or num_running > max(self._most_running, 1 + len(answer.followers)):
                return
            count = self._first_rows(answer, prospect, is_oldest)
            if not count:
                return
            is_oldest = False
            self._room.take_blocks(prospect.blocks_wanted(count))
            self._admitted.append(answer)
            self._names.update(prospect.names)
            self._rows[answer] = count
            self._rows_left -= count
            num_outputs = int(count == len(answer.context) - prospect.num_tokens)
            self._load = self._load.plus(prefill_load(prospect.num_tokens, count, num_outputs))

    def _is_computed_elsewhere(self, prospect: Prospect) -> bool:
        """Whether somebody else computes the next block that is wanted: it will be there soon."""
        if prospect.is_computed_elsewhere or not prospect.names:
            return prospect.is_computed_elsewhere
        return prospect.names[0] in self._names

    def _first_rows(self, answer: Answer, prospect: Prospect, is_oldest: bool) -> int:
        """Rows that a request can begin with: 0 where there is no time, or no room for its whole prompt."""
        num_left = len(answer.context) - prospect.num_tokens
        most = min(num_left, self._rows_left, answer.rows_to_stop(prospect.num_tokens))
        in_time = self._cost.rows_within(self._load, self._limit_s, prospect.num_tokens, most)
        count = max(in_time, min(most, self._settings.least_rows)) if is_oldest else in_time
        if self._rows:
            return count if self._room.has(prospect.blocks_wanted(num_left), reserve=len(self._rows)) else 0
        while count > 1 and not self._room.has(prospect.blocks_wanted(count)):
            count = _block_less(prospect.num_tokens, count)
        assert self._room.has(prospect.blocks_wanted(count)), (prospect, count, self._room.available)
        return count

    def _result(self, decoding: list[Answer], prompts: list[Answer]) -> Plan:
        if self._drafts:
            feeds = [Feed(answer, 1, self._drafts.get(answer, NO_DRAFT)) for answer in decoding]
        else:
            feeds = [Feed(answer, 1) for answer in decoding]
        feeds += [Feed(answer, self._rows[answer]) for answer in (*prompts, *self._admitted)]
        return Plan(
            tuple(self._preempted),
            tuple(self._admitted),
            tuple(feeds),
            self._load,
            self._cost.predict(self._load),
        )


def _is_brief(answer: Answer, num_left: int, oldest: Answer) -> bool:
    """Whether ``answer``, with ``num_left`` tokens to compute, needn't wait until the prompt of ``oldest`` is computed.

    It is a fraction of what the oldest has left, and no less important.
    """
    return BRIEF * num_left <= oldest.num_left and answer.request.priority >= oldest.request.priority


def _block_less(position: int, count: int) -> int:
    """Rows from ``position`` on that end with the block before the one in which ``count`` rows end; at least one."""
    return max(1, count - 1 - (position + count - 1) % BLOCK_TOKENS)
