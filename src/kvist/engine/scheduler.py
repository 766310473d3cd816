"""Who runs and who waits. ``plan_step`` decides without touching anything; ``commit`` is the only one that acts.

Progress: of those who run the one that was admitted first is never a victim, gets a row in every step, and fits alone
(``check_fits`` saw to that). So it ends, and then the next one is the first. Among those who wait everybody becomes the
most urgent one day (``policy``), and the most urgent is let in when nobody runs.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import replace

from kvist.cache.kv_cache import KvCache
from kvist.cache.swap import Swapped, SwapSpace
from kvist.engine.answer import Answer
from kvist.engine.cost import CostModel
from kvist.engine.plan import Plan
from kvist.engine.planning import Planning, Settings
from kvist.engine.policy import Policy, Waiting
from kvist.engine.prospect import Prospects

REORDER_STEPS = 16
"""Steps after which the cache is asked again what it holds of each waiting prompt, where the policy wants to know."""


class Scheduler:
    """``running`` are in the order of their admission, ``waiting`` in that of their arrival."""

    def __init__(
        self,
        cache: KvCache,
        cost: CostModel,
        policy: Policy,
        settings: Settings,
        *,
        step_tokens: int,
        swap: SwapSpace | None = None,
    ) -> None:
        self.running: list[Answer] = []
        self.waiting: list[Answer] = []
        self.num_steps = self.num_preemptions = 0
        self._cache, self._cost, self._policy, self._settings = cache, cost, policy, settings
        self._step_tokens = step_tokens
        self._swap = swap
        self._prospects = Prospects(cache, swap)
        self._num_arrived = self._num_admitted = 0
        self._order: list[Answer] = []  # of those that wait, as of a step
        self._order_step: int | None = None

    def add(self, answer: Answer) -> None:
        """Let ``answer`` wait for its turn; its followers come with it."""
        for each in (answer, *answer.followers):
            each.arrival, each.arrival_step = self._num_arrived, self.num_steps
            self._num_arrived += 1
        self._wait(answer)

    def _wait(self, answer: Answer) -> None:
        insort(self.waiting, answer, key=lambda other: other.arrival)
        self._order_step = None

    def plan_step(self) -> Plan:
        """Return what the next step should do."""
        planning = Planning(
            self._cache,
            self._prospects,
            self._cost,
            self._policy,
            self._settings,
            step_tokens=self._step_tokens,
            step=self.num_steps,
            running=self.running,
            waiting=self._in_order(),
        )
        return planning.plan()

    def _in_order(self) -> list[Answer]:
        """Those that wait, the most urgent first. Two keep their order while they wait, so it is sorted seldom."""
        is_old = self._order_step is None or self.num_steps >= self._order_step + REORDER_STEPS
        if self._order_step is None or (is_old and self._policy.needs_hits):
            by_arrival = {answer.arrival: answer for answer in self.waiting}
            facts = [self._facts(answer) for answer in self.waiting]
            self._order = [by_arrival[found.arrival] for found in self._policy.order(facts)]
            self._order_step = self.num_steps
        return self._order

    def _facts(self, answer: Answer) -> Waiting:
        num_hit = self._prospects.num_hit(answer) if self._policy.needs_hits else 0
        num_waited = self.num_steps - answer.arrival_step
        return Waiting(answer.arrival, answer.request.priority, len(answer.ids), num_hit, num_waited)

    def commit(self, plan: Plan, now_s: float) -> None:
        """Take the blocks of those who are preempted, and let those in who are admitted."""
        self.num_steps += 1
        for answer in plan.preempted:
            self.preempt(answer)
        for answer in plan.admitted:
            self.waiting.remove(answer)
            self._order.remove(answer)
            self._prospects.forget(answer)
            self._begin(answer, now_s)
            self._run(answer)

    def _begin(self, answer: Answer, now_s: float) -> None:
        """Give ``answer`` a sequence, with what the swap space or the cache has of its tokens."""
        if answer.swapped is not None:
            self._bring_back(answer, answer.swapped)
            return
        sequence = self._cache.new_sequence(
            salt=answer.request.salt,
            is_shared=answer.is_shared,
            retention=answer.retention,
            prompt_tokens=answer.num_prompt,
        )
        reuse = sequence.reuse(answer.context)
        sequence.plan(answer.context)
        answer.sequence, answer.num_recorded = sequence, reuse.num_tokens
        if answer.admitted_s is None:
            answer.admitted_s, answer.num_cached = now_s, reuse.num_tokens
            answer.miss = reuse.miss
            if reuse.miss is not None and not answer.request.explain:
                answer.miss = replace(reuse.miss, shared=(), ours=(), theirs=())

    def _bring_back(self, answer: Answer, swapped: Swapped) -> None:
        """Let the sequence of ``answer`` go on with the tokens that it had."""
        assert self._swap is not None and self._swap.swap_in(swapped), answer.request_id
        answer.sequence, answer.num_recorded = swapped.sequence, swapped.sequence.num_tokens
        answer.swapped = None
        swapped.sequence.plan(answer.context)

    def _run(self, answer: Answer) -> None:
        answer.admission, answer.admission_step = self._num_admitted, self.num_steps
        self._num_admitted += 1
        self.running.append(answer)

    def undo_unsettled(self) -> None:
        """Forget what an interrupted step computed and nobody wrote down."""
        for answer in self.running:
            if answer.num_held > answer.num_recorded:
                answer.num_recorded = answer.held.truncate(answer.num_recorded)

    def preempt(self, answer: Answer) -> None:
        """Take the blocks of a running answer, to the swap space if they fit there; it waits where it had waited."""
        sequence = answer.held
        answer.swapped = self._swap.swap_out(sequence) if self._swap is not None else None
        answer.let_go()
        answer.num_preemptions += 1
        self.num_preemptions += 1
        self.running.remove(answer)
        self._wait(answer)

    def join(self, answer: Answer) -> None:
        """Let an answer that has forked from a running one run, too."""
        self._run(answer)

    def remove(self, answer: Answer) -> None:
        """Forget an answer that has ended; it gives its blocks back."""
        if answer in self.running:
            self.running.remove(answer)
        elif answer in self.waiting:
            self.waiting.remove(answer)
            self._order_step = None
        self._prospects.forget(answer)
        if answer.swapped is not None and self._swap is not None:
            self._swap.discard(answer.swapped)
            answer.swapped = None
        answer.let_go()
