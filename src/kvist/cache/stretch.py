"""The longest stretch that two sequences of tokens have in common."""

from __future__ import annotations

from collections.abc import Sequence as TokenIds
from typing import NamedTuple


class Stretch(NamedTuple):
    """Where it begins in each of the two, and its length; 0 where they have no token in common."""

    at_a: int
    at_b: int
    size: int


def longest_stretch(a: TokenIds[int], b: TokenIds[int]) -> Stretch:
    """Return the longest one, the first in ``b`` of several.

    By a suffix automaton of ``a`` (Blumer et al., 1985), in a time that grows with the lengths alone, whatever repeats.
    """
    nexts, links, lengths, ends = _automaton(a)
    state = size = 0
    best = Stretch(0, 0, 0)
    for at, token_id in enumerate(b):
        while state and token_id not in nexts[state]:
            state = links[state]
            size = lengths[state]
        following = nexts[state].get(token_id)
        if following is None:
            continue
        state, size = following, size + 1
        if size > best.size:
            best = Stretch(ends[state] - size, at + 1 - size, size)
    return best


def _automaton(ids: TokenIds[int]) -> tuple[list[dict[int, int]], list[int], list[int], list[int]]:
    """States by number, the start 0: what follows on each, its suffix link, its longest text, where that ends first."""
    nexts: list[dict[int, int]] = [{}]
    links, lengths, ends = [-1], [0], [0]

    def add(following: dict[int, int], link: int, length: int, end: int) -> int:
        nexts.append(following)
        links.append(link)
        lengths.append(length)
        ends.append(end)
        return len(nexts) - 1

    last = 0
    for at, token_id in enumerate(ids):
        state, last = last, add({}, 0, lengths[last] + 1, at + 1)
        while state >= 0 and token_id not in nexts[state]:
            nexts[state][token_id] = last
            state = links[state]
        if state < 0:
            continue
        old = nexts[state][token_id]
        if lengths[old] == lengths[state] + 1:
            links[last] = old
            continue
        copy = add(dict(nexts[old]), links[old], lengths[state] + 1, ends[old])
        links[old] = links[last] = copy
        while state >= 0 and nexts[state].get(token_id) == old:
            nexts[state][token_id] = copy
            state = links[state]
    return nexts, links, lengths, ends
