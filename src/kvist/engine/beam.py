"""Beam search: the likeliest continuations as a whole, not token by token.

``width`` beginnings go on side by side; each step looks at the likeliest next tokens of all of them and keeps the best
``width`` together. A beginning that goes on in two ways forks: what is shared is computed, and kept, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvist.engine.guest import Guest
from kvist.engine.request import MAX_LOGPROBS, check_max_tokens
from kvist.engine.result import TokenLogprobs
from kvist.engine.values import finite_number, whole_number

Look = Callable[[int], list[TokenLogprobs]]
"""Computes the last token of each guest and returns that many likeliest next ones of each."""

MAX_WIDTH = MAX_LOGPROBS // 2
MAX_LENGTH_PENALTY = 32
"""A float holds any context's length to that power."""


@dataclass(frozen=True)
class Beam:
    """One continuation: its tokens (an end token included), the sum of their natural log-probabilities, and by what it
    was ranked: ``logprob / num_tokens ** length_penalty``."""

    token_ids: tuple[int, ...]
    logprob: float
    score: float
    text: str = ""


@dataclass
class _Open:
    guest: Guest
    token_ids: tuple[int, ...]
    logprob: float


def search_of(width: int, max_tokens: int, length_penalty: float, step_tokens: int) -> tuple[int, int, float]:
    """Return the three as Python's own numbers; raises RequestError for what isn't a search."""
    most = min(MAX_WIDTH, step_tokens)
    rule = f"from {-MAX_LENGTH_PENALTY} to {MAX_LENGTH_PENALTY}"
    return (
        whole_number("width", width, f"from 1 to {most}", least=1, most=most),
        check_max_tokens(max_tokens),
        finite_number("length_penalty", length_penalty, rule, least=-MAX_LENGTH_PENALTY, most=MAX_LENGTH_PENALTY),
    )


def beam_search(
    look: Look, guests: list[Guest], *, width: int, max_tokens: int, length_penalty: float, ends: frozenset[int]
) -> list[Beam]:
    """Return up to ``width`` continuations, the best first; ties to the higher ranked beginning, then the lower id.

    ``guests`` holds the prompt's alone to begin with, and always all that there are; who calls lets them leave.
    """
    beams = [_Open(guests[0], (), 0.0)]
    done: list[Beam] = []
    for length in range(1, max_tokens + 1):
        looks = look(2 * width)  # so many that width are left if each has an end
        found = [
            (beam.logprob + logprob, number, token_id)
            for number, (beam, top) in enumerate(zip(beams, looks, strict=True))
            for token_id, logprob in top.top
        ]
        found.sort(key=lambda entry: (-entry[0], entry[1], entry[2]))
        chosen: list[tuple[float, int, int]] = []
        for logprob, number, token_id in found[: 2 * width]:
            is_last = length == max_tokens
            if token_id in ends or is_last:
                token_ids = (*beams[number].token_ids, token_id)
                done.append(Beam(token_ids, logprob, logprob / length**length_penalty))
            elif len(chosen) < width:
                chosen.append((logprob, number, token_id))
        done.sort(key=lambda beam: -beam.score)
        del done[width:]
        is_decided = len(done) == width and (
            not chosen or done[-1].score >= chosen[0][0] / _best_length(length, max_tokens, length_penalty)
        )
        if is_decided or not chosen:
            break
        beams = _go_on(beams, chosen, guests)
    return done


def _best_length(length: int, max_tokens: int, length_penalty: float) -> float:
    """What divides a sum of logprobs, which only falls, in the case that is best for it."""
    return float(max(length**length_penalty, max_tokens**length_penalty))


def _go_on(beams: list[_Open], chosen: list[tuple[float, int, int]], guests: list[Guest]) -> list[_Open]:
    """Return the chosen continuations; a beam that goes on in several ways forks, one that doesn't at all leaves."""
    going: set[int] = set()
    opened = []
    for logprob, number, token_id in chosen:
        beam = beams[number]
        is_first = number not in going
        going.add(number)
        opened.append(_Open(beam.guest if is_first else beam.guest.fork(), (*beam.token_ids, token_id), logprob))
    for number, beam in enumerate(beams):
        if number not in going:
            beam.guest.leave()
    for beam in opened:
        beam.guest.ids.append(beam.token_ids[-1])
    guests[:] = [beam.guest for beam in opened]
    return opened
