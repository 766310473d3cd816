"""Drafting: guessing the next tokens from where the same few tokens stood before, in the prompt or the answer.

A draft is verified in one pass, every position sampled as it would have been alone, so a wrong guess costs rows and
never a token. Saxena, "Prompt lookup decoding" (2023); Leviathan et al., "Fast inference from transformers via
speculative decoding" (2023), of which nothing is needed beyond comparing tokens, since random numbers are keyed by
position. Knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence as TokenIds
from typing import NamedTuple

LONGEST, SHORTEST = 5, 2
"""Tokens that are looked for, as many as there can be found."""

MEMORY = 0.85
"""What an earlier verification still counts after one more."""
PROBE_EVERY, PROBE_TOKENS = 24, 2
"""At each so many-th position so many tokens are drafted even where they aren't worth their rows: a text may begin to
repeat."""


class Draft(NamedTuple):
    """Tokens that may follow, and how many tokens before them were found together elsewhere."""

    match: int
    token_ids: tuple[int, ...]


NO_DRAFT = Draft(0, ())


class Drafter:
    """Drafts for one answer, from its tokens so far."""

    def __init__(self, token_ids: TokenIds[int]) -> None:
        self._ids: list[int] = []
        self._places: list[dict[tuple[int, ...], int]] = [{} for _ in range(LONGEST + 1)]
        self._right = [2.0] * (LONGEST + 1)  # by length of the match; begins as two of three
        self._tried = [3.0] * (LONGEST + 1)
        for token_id in token_ids:
            self.add(token_id)

    def add(self, token_id: int) -> None:
        """Note one more token."""
        ids = self._ids
        for length in range(SHORTEST, min(LONGEST, len(ids)) + 1):
            self._places[length][tuple(ids[-length:])] = len(ids)  # of the token after them, which comes now
        ids.append(token_id)

    def draft(self, most: int) -> Draft:
        """Return up to ``most`` tokens that followed the latest place of the longest end that stood before."""
        ids = self._ids
        for length in range(min(LONGEST, len(ids)), SHORTEST - 1, -1):
            place = self._places[length].get(tuple(ids[-length:]))
            if place is not None:
                return Draft(length, self._from(place, most))
        return NO_DRAFT

    def _from(self, place: int, most: int) -> tuple[int, ...]:
        """Tokens from ``place`` on; at the end the text is taken to go round, as it does in a repetition."""
        period = len(self._ids) - place
        return tuple(self._ids[place + number % period] for number in range(most))

    def cut(self, draft: Draft, token_s: float, row_s: float) -> Draft:
        """Return as much of ``draft`` as is worth its rows.

        The n-th token is right with the n-th power of how often its match was right before, and then saves ``token_s``;
        right or wrong it takes ``row_s``.
        """
        chance = self.acceptance(draft.match)
        count, likely = 0, chance
        while count < len(draft.token_ids) and likely * token_s > row_s:
            count += 1
            likely *= chance
        if not count and len(self._ids) % PROBE_EVERY == 0:
            count = PROBE_TOKENS
        return Draft(draft.match, draft.token_ids[:count])

    def acceptance(self, match: int) -> float:
        """The share of drafted tokens that were right, lately, after a match of this length."""
        return self._right[match] / self._tried[match]

    def learn(self, draft: Draft, num_right: int) -> None:
        """Note that the first ``num_right`` of a draft's tokens were right."""
        num_tried = min(len(draft.token_ids), num_right + 1)
        self._right[draft.match] = MEMORY * self._right[draft.match] + num_right
        self._tried[draft.match] = MEMORY * self._tried[draft.match] + num_tried
