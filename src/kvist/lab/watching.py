"""What there is to see of an engine at work: which block is whose, what a pass computed, what one head attends to.

Everything is read from the cache and from the pass that has just run; nothing is computed again but one head's softmax.
How it is shown is ``cli.watch_view``'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from kvist.cache.kv_cache import KvCache
from kvist.cache.usage import CacheUsage
from kvist.engine.batch import Batch
from kvist.engine.request import Request
from kvist.engine.result import Result
from kvist.engine.ticket import Ticket
from kvist.spec.cache import BLOCK_TOKENS

if TYPE_CHECKING:
    from kvist.engine.engine import Engine
    from kvist.model.decoder import Decoder

FREE, CACHED, SHARED = ".", "+", "*"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MOST_REQUESTS = len(LETTERS)


@dataclass(frozen=True)
class Work:
    """What a pass did for one request: ``token_ids`` entered at ``position`` and the ones behind it.

    ``block`` and ``place`` are where the last of them stands, ``num_seen`` how many tokens it attended to.
    ``chosen`` is the token that came of it; None where the prompt isn't whole yet.
    """

    letter: str
    is_prefill: bool
    position: int
    token_ids: tuple[int, ...]
    block: int
    place: int
    num_seen: int
    chosen: int | None


@dataclass(frozen=True)
class Attention:
    """The softmax weights of one query head, of the last layer, over the tokens that it saw.

    ``positions[i]``, where ``token_ids[i]`` stands, got ``weights[i]``. They sum to 1 (a learned sink is left out).
    """

    letter: str
    layer: int
    head: int
    positions: tuple[int, ...]
    token_ids: tuple[int, ...]
    weights: tuple[float, ...]

    def top(self, count: int) -> list[tuple[int, int, float]]:
        """Position, token and weight of those with the most weight."""
        ranked = sorted(zip(self.positions, self.token_ids, self.weights, strict=True), key=lambda found: -found[2])
        return ranked[:count]


@dataclass(frozen=True)
class Frame:
    """How it stands after a pass. ``blocks`` has a letter a block, in the order of their numbers, a text a group."""

    number: int
    works: tuple[Work, ...]
    blocks: tuple[str, ...]
    usage: CacheUsage
    results: tuple[tuple[str, Result], ...]
    hit_rate: float
    attention: Attention | None

    @property
    def counts(self) -> dict[str, int]:
        """Blocks that are free, cached and used."""
        return {
            "free": self.usage.num_free_blocks,
            "cached": self.usage.num_cached_blocks,
            "used": self.usage.num_used_blocks,
        }


class Watch:
    """Serves ``requests`` and yields a frame for each pass. ``head`` is the query head that is looked at.

    The first request whose row is the pass's last one is the one whose attention is shown. ``gap`` passes go by before
    the next request is asked, so that one can see it come.
    """

    def __init__(self, engine: Engine, requests: Sequence[Request], *, head: int = 0, gap: int = 0) -> None:
        assert 0 < len(requests) <= MOST_REQUESTS, len(requests)
        self._engine, self._requests, self._head, self._gap = engine, list(requests), head, gap
        self._letters: dict[int, str] = {}
        self._tickets: list[Ticket] = []
        self._batch: Batch | None = None
        self._starts: list[int] = []
        self._attention: Attention | None = None

    def frames(self) -> Iterator[Frame]:
        """Step the engine until all requests have ended; raises what went wrong with any.

        Its clock stands still while a frame is looked at, so that times are the engine's own.
        """
        engine = self._engine
        on_pass, clock, shown_s = engine.on_pass, engine.clock, 0.0
        engine.on_pass, engine.clock = self._look, lambda: clock() - shown_s
        try:
            for number in count(1):
                self._ask(number)
                if not engine.has_work:
                    return
                events = engine.step()
                if self._batch is not None:
                    frame, started_s = self._frame(number, {one.request_id: one.token_id for one in events}), clock()
                    yield frame
                    shown_s += clock() - started_s
                for ticket in self._tickets:
                    if ticket.error is not None:
                        raise ticket.error
        finally:
            engine.on_pass, engine.clock = on_pass, clock

    def cancel(self) -> None:
        """End what hasn't ended."""
        for ticket in self._tickets:
            self._engine.cancel(ticket.id)

    def _ask(self, number: int) -> None:
        """Ask those whose turn it is."""
        while self._requests and (number > self._gap * len(self._tickets) or not self._engine.has_work):
            ticket = self._engine.add(self._requests.pop(0))
            self._letters[ticket.id] = LETTERS[len(self._tickets)]
            self._tickets.append(ticket)

    def _look(self, batch: Batch, decoder: Decoder) -> None:
        """Called between the pass and what comes of it: the queries of the pass are still there."""
        self._batch = batch
        self._starts = [part.sequence.num_tokens - len(part.token_ids) for part in batch.parts]
        last, num_rows = batch.parts[-1], sum(len(part.token_ids) for part in batch.parts)
        weights = decoder.attention_weights(last.sequence, num_rows - 1, self._head)
        answer = batch.feeds[-1].answer
        self._attention = Attention(
            self._letters[answer.request_id],
            len(decoder.spec.layers) - 1,
            self._head,
            tuple(position for position, _ in weights),
            tuple(answer.context[position] for position, _ in weights),
            tuple(weight for _, weight in weights),
        )

    def _frame(self, number: int, chosen: dict[int, int]) -> Frame:
        batch = self._batch
        assert batch is not None
        self._batch = None
        cache = batch.parts[0].sequence.cache
        works = tuple(self._works(batch, chosen))
        results = tuple((self._letters[ticket.id], ticket.result) for ticket in self._tickets)
        prompts = sum(result.prompt_tokens for _, result in results)
        hits = sum(result.cached_tokens for _, result in results)
        return Frame(
            number,
            works,
            self._blocks(cache),
            cache.usage(),
            results,
            hits / prompts if prompts else 0.0,
            self._attention,
        )

    def _works(self, batch: Batch, chosen: dict[int, int]) -> Iterator[Work]:
        for feed, part, start in zip(batch.feeds, batch.parts, self._starts, strict=True):
            end = start + len(part.token_ids)
            block, place = divmod(end - 1, BLOCK_TOKENS)
            yield Work(
                self._letters[feed.answer.request_id],
                start < feed.answer.num_prompt,
                start,
                tuple(part.token_ids),
                block,
                place,
                end,
                chosen.get(feed.answer.request_id),
            )

    def _blocks(self, cache: KvCache) -> tuple[str, ...]:
        """A letter for each block of each group's pool."""
        owners: list[dict[int, str]] = [{} for _ in cache.pools]
        for ticket in self._tickets:
            for answer in ticket.answers:
                if answer.sequence is not None:
                    for found, table in zip(owners, answer.sequence.tables, strict=True):
                        for block in table.held:
                            found[block] = SHARED if block in found else self._letters[ticket.id]
        return tuple(
            "".join(found.get(block, CACHED if pool.is_published(block) else FREE) for block in range(pool.num_blocks))
            for found, pool in zip(owners, cache.pools, strict=True)
        )
