"""A fact hidden in a long text, and whether the model can give it back: what a mean over all tokens doesn't see.

The text says the pass key once, at some depth, and asks for it at the end. Small models seldom answer as told, so what
counts isn't the wording of an answer: place by place, with the places before it given, the key's own token has to be
likelier than those of nine distractors. These are the key with each digit one to nine steps further (9 goes on to 0):
where a token is a digit, it is up against all others, and who has lost the fact scores 0.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from kvist.checkpoint.tokenizer import Tokenizer
from kvist.errors import RequestError

DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
CHANCE = 0.1
KEYS = ("71432", "50896", "38271", "94605", "26174", "83950", "17528", "60349", "42783", "95016")
"""One for each depth, in turn."""

_FACT = "\n\nThe pass key is {key}. Remember it: {key} is the pass key.\n\n"
_QUESTION = "\n\nWhat is the pass key? The pass key is"


@dataclass(frozen=True)
class Needle:
    """A prompt that ends where the key begins, the key's tokens, and the distractors' at the same places."""

    depth: float
    prompt_ids: tuple[int, ...]
    key_ids: tuple[int, ...]
    distractor_ids: tuple[tuple[int, ...], ...]

    @property
    def token_ids(self) -> tuple[int, ...]:
        """What enters the model: all but the key's last token."""
        return self.prompt_ids + self.key_ids[:-1]

    def score(self, logits: npt.NDArray[np.float32]) -> float:
        """Return the share of places won, from the logits of the rows that the key's tokens follow [places, V]."""
        assert len(logits) == len(self.key_ids), (len(logits), len(self.key_ids))
        won = [
            all(row[key_id] > row[other] for other in others)
            for row, key_id, others in zip(logits, self.key_ids, zip(*self.distractor_ids, strict=True), strict=True)
        ]
        return sum(won) / len(won)


def make_needle(tokenizer: Tokenizer, hay_ids: list[int], num_tokens: int, number: int, depth: float) -> Needle:
    """Hide key ``number`` in the first of ``hay_ids`` so that ``num_tokens`` tokens enter the model.

    Raises RequestError where they are too few for the fact and the question.
    """
    assert 0 <= depth <= 1, depth
    key = KEYS[number % len(KEYS)]
    fact = tokenizer.encode(_FACT.format(key=key), add_special_tokens=False)
    questions = [tokenizer.encode(f"{_QUESTION} {_shifted(key, step)}", add_special_tokens=False) for step in range(10)]
    common = [ids[0] for ids in takewhile(_is_one, zip(*questions, strict=False))]
    question, *others = (ids[len(common) :] for ids in questions)
    num_hay = num_tokens - len(fact) - len(common) - len(question) + 1
    if num_hay < 1 or len(hay_ids) < num_hay:
        raise RequestError(
            f"{num_tokens} tokens of context and {len(hay_ids)} of text hide no pass key; give more to --context or "
            "--tokens, or leave it out with --depths none"
        )
    before = round(depth * num_hay)
    prompt = (*hay_ids[:before], *fact, *hay_ids[before:num_hay], *common)
    distractors = tuple(tuple(ids) for ids in others if len(ids) == len(question))
    assert distractors, questions
    return Needle(depth, prompt, tuple(question), distractors)


def _is_one(token_ids: tuple[int, ...]) -> bool:
    return len(set(token_ids)) == 1


def _shifted(key: str, step: int) -> str:
    return "".join(str((int(digit) + step) % 10) for digit in key)
