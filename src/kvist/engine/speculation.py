"""Drafting: guessing the next tokens from where the same few tokens stood before, in the prompt or the answer.

A draft is verified in one pass, every position sampled as it would have been alone, so a wrong guess costs rows and
never a token. Saxena, "Prompt lookup decoding" (2023); Leviathan et al., "Fast inference from transformers via
speculative decoding" (2023), of which nothing is needed beyond comparing tokens, since random numbers are keyed by
position. Knows no model.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence as TokenIds
from typing import NamedTuple

LONGEST, SHORTEST = 5, 2
"""Tokens that are looked for, as many as there can be found."""

LEVELS = (1, 2, 3, 4, 6, 9)
"""Lengths of a match from which on it is another kind: what follows on nine equal tokens is copied more often than what
follows on two."""
FIRST_CHANCES = (0.25, 0.4, 0.55, 0.7, 0.85, 0.95)
FIRST_WEIGHT = 4.0
"""How often the next token is right after a match of each kind, to begin with, and how many tokens that counts."""

NEAR = (2, 10)
"""Tokens before and after the place where a copy would go on, among which one equal token is enough to resume it."""
RESUME_WITHIN = 16
"""Tokens after the copy's last one, for as long as that is tried: what is further on is another text."""

MEMORY = 0.85
"""What an earlier verification still counts after one more."""
PROBE_EVERY = 24
"""At each so many-th position a token is drafted even where it isn't worth its row: a text may begin to repeat."""


class Draft(NamedTuple):
    """Tokens that may follow; how many tokens before them were found together elsewhere, and the first one's place."""

    match: int
    token_ids: tuple[int, ...]
    place: int = 0


NO_DRAFT = Draft(0, ())


class Drafter:
    """Drafts for one answer, from its tokens so far.

    Text is copied in runs: the longer a match, the likelier the next token is right, so that each token of a draft that
    was right makes the following one likelier. Where a copy parts from its source for a word, the place that is
    nearest to where it would have gone on is the likeliest of several.
    """

    def __init__(self, token_ids: TokenIds[int]) -> None:
        self._ids: list[int] = []
        self._places: list[dict[tuple[int, ...], list[int]]] = [{} for _ in range(LONGEST + 1)]
        self._right = [FIRST_WEIGHT * chance for chance in FIRST_CHANCES]  # by level
        self._tried = [FIRST_WEIGHT] * len(LEVELS)
        self._lead: int | None = None  # how far ahead of its source the copy is
        self._num_copied = 0  # tokens there were when it had its last one
        for token_id in token_ids:
            self.add(token_id)

    def add(self, token_id: int) -> None:
        """Note one more token."""
        ids = self._ids
        for length in range(SHORTEST, min(LONGEST, len(ids)) + 1):
            places = self._places[length].setdefault(tuple(ids[-length:]), [])
            places.append(len(ids))  # of the token after them, which comes now
        ids.append(token_id)

    def draft(self, most: int) -> Draft:
        """Return up to ``most`` tokens that followed the longest end that stood before.

        Of several places the one nearest to where a copy would go on, or the latest where none is under way. Where a
        copy has just parted from its source, one token is looked for, near where it would have gone on.
        """
        ids = self._ids
        for length in range(min(LONGEST, len(ids)), SHORTEST - 1, -1):
            places = self._places[length].get(tuple(ids[-length:]))
            if places:
                place = self._nearest(places)
                return Draft(self._match(place), self._from(place, most), place)
        found = self._resumed()
        return NO_DRAFT if found is None else Draft(self._match(found), self._from(found, most), found)

    def _resumed(self) -> int | None:
        """The place after the token nearest to where the copy would have gone on that is the last one."""
        ids = self._ids
        if self._lead is None or len(ids) > self._num_copied + RESUME_WITHIN:
            return None
        expected = len(ids) - self._lead
        near = range(max(1, expected - NEAR[0]), min(len(ids), expected + NEAR[1] + 1))
        places = [place for place in near if ids[place - 1] == ids[-1]]
        return min(places, key=lambda place: abs(place - expected), default=None)

    def _nearest(self, places: list[int]) -> int:
        if self._lead is None:
            return places[-1]
        expected = len(self._ids) - self._lead
        at = bisect_left(places, expected)
        return min(places[max(0, at - 1) : at + 1], key=lambda place: abs(place - expected))

    def _match(self, place: int) -> int:
        """How many tokens before ``place`` are those at the end, as far as that makes a difference."""
        ids, end, count = self._ids, len(self._ids), 0
        while count < min(place, LEVELS[-1]) and ids[place - 1 - count] == ids[end - 1 - count]:
            count += 1
        return count

    def _from(self, place: int, most: int) -> tuple[int, ...]:
        """Tokens from ``place`` on; at the end the text is taken to go round, as it does in a repetition."""
        period = len(self._ids) - place
        return tuple(self._ids[place + number % period] for number in range(most))

    def cut(self, draft: Draft, token_s: float, row_s: float) -> Draft:
        """Return as much of ``draft`` as gives the most tokens a second.

        A row takes ``row_s``, right or wrong, and a step without any ``token_s``.
        """
        count, tokens, likely = 0, 1.0, 1.0
        for number in range(len(draft.token_ids)):
            likely *= self.acceptance(draft.match + number)
            if likely * (token_s + number * row_s) <= tokens * row_s:  # what follows is less likely still
                break
            count, tokens = number + 1, tokens + likely
        if not count and len(self._ids) % PROBE_EVERY == 0:
            count = 1
        return draft._replace(token_ids=draft.token_ids[:count])

    def acceptance(self, match: int) -> float:
        """The share of drafted tokens that were right, lately, after a match of this length."""
        level = _level(match)
        return self._right[level] / self._tried[level]

    def learn(self, draft: Draft, num_right: int) -> None:
        """Note that the first ``num_right`` of a draft's tokens were right."""
        levels = [_level(draft.match + number) for number in range(min(len(draft.token_ids), num_right + 1))]
        for level in set(levels):
            self._right[level] *= MEMORY
            self._tried[level] *= MEMORY
        for number, level in enumerate(levels):
            self._tried[level] += 1
            self._right[level] += number < num_right
        if num_right or draft.match >= SHORTEST:
            self._num_copied = len(self._ids)
        if num_right or self._lead is None:
            self._lead = len(self._ids) - (draft.place + num_right + 1)


def _level(match: int) -> int:
    return max(0, bisect_right(LEVELS, match) - 1)
