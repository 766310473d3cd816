"""A case's decoder with the logits of two texts, and what is done to sequences that follow them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tiny.stream import Stream

from kvist.cache.kv_cache import KvCache
from kvist.cache.sequence import Sequence
from kvist.model.decoder import Decoder, Part
from proof.cases import Case

Logits = np.ndarray[Any, np.dtype[np.float32]]
FORKED_AT = 120
"""The first tokens that both texts share."""
LENGTH = 620


def texts(vocab_size: int) -> list[list[int]]:
    """Two lists of tokens with the same start."""
    one, other = (Stream(9, tag).integers(LENGTH, vocab_size) for tag in ("one", "other"))
    return [one, one[:FORKED_AT] + other[FORKED_AT:]]


def logits_in(decoder: Decoder, cache: KvCache, token_ids: list[int], chunks: list[int]) -> Logits:
    """Logits of every position of a new sequence, fed in pieces of the given sizes, the last one again and again."""
    sequence, rows, start = cache.new_sequence(), [], 0
    sizes = iter(chunks)
    size = 0
    while start < len(token_ids):
        size = next(sizes, size)
        rows.append(decoder.forward([Part(sequence, token_ids[start : start + size], "all")]))
        sequence.drop_unseen()
        start += size
    sequence.release()
    return np.concatenate(rows)


def differing(logits: Logits, expected: Logits) -> list[int]:
    """Rows of which any byte differs."""
    assert logits.shape == expected.shape
    return np.flatnonzero((logits.view(np.uint32) != expected.view(np.uint32)).any(axis=-1)).tolist()


class Ground:
    """A case's decoder, and the logits of its two texts."""

    def __init__(self, case: Case, path: Path) -> None:
        self.case, self.path = case, case.write(path)
        self.decoder = case.load(self.path)
        self.texts = texts(self.decoder.spec.vocab_size)
        self.expected = [
            logits_in(self.decoder, case.new_cache(self.decoder), text, [self.decoder.step_tokens])
            for text in self.texts
        ]


class History(RuleBasedStateMachine):
    """Sequences that follow one of two texts: together in a pass, cut, released, moved to the other text."""

    ground: Ground
    most_sequences = 4

    def __init__(self) -> None:
        super().__init__()
        self.cache = self.ground.case.new_cache(self.ground.decoder, self.most_sequences)
        self.sequences: list[tuple[Sequence, int]] = []  # and which text it follows

    @initialize(count=st.integers(1, 3))
    def begin(self, count: int) -> None:
        for number in range(count):
            self.add(number % 2)

    @precondition(lambda self: len(self.sequences) < self.most_sequences)
    @rule(text=st.integers(0, 1))
    def add(self, text: int) -> None:
        self.sequences.append((self.cache.new_sequence(), text))

    @precondition(lambda self: self.sequences)
    @rule(
        sizes=st.lists(st.integers(0, 5) | st.integers(0, 80), min_size=4, max_size=4).filter(any),
        wanted=st.lists(st.sampled_from(["all", "last", "none"]), min_size=4, max_size=4),
        is_reversed=st.booleans(),
    )
    def step(self, sizes: list[int], wanted: list[Any], is_reversed: bool) -> None:
        """A pass of several sequences, in either order."""
        parts, expected, room = [], [], self.ground.decoder.step_tokens
        order = self.sequences[::-1] if is_reversed else self.sequences
        for (sequence, text), size, kind in zip(order, sizes, wanted, strict=False):
            start = sequence.num_tokens
            end = min(start + size, start + room, LENGTH)
            if end == start:
                continue
            room -= end - start
            parts.append(Part(sequence, self.ground.texts[text][start:end], kind))
            first = {"all": start, "last": end - 1, "none": end}[kind]
            expected.append(self.ground.expected[text][first:end])
        if parts:
            logits = self.ground.decoder.forward(parts, is_copied=False)
            assert differing(logits, np.concatenate(expected)) == []
        for part in parts:
            part.sequence.drop_unseen()

    @precondition(lambda self: self.sequences)
    @rule(number=st.integers(0, 3), part=st.floats(0, 1), text=st.integers(0, 1))
    def cut(self, number: int, part: float, text: int) -> None:
        """Truncate, and go on with a text that begins alike."""
        sequence, before = self.sequences[number % len(self.sequences)]
        left = sequence.truncate(int(part * sequence.num_tokens))
        self.sequences[number % len(self.sequences)] = sequence, text if left <= FORKED_AT else before

    @precondition(lambda self: self.sequences)
    @rule(number=st.integers(0, 3))
    def release(self, number: int) -> None:
        self.sequences.pop(number % len(self.sequences))[0].release()

    @invariant()
    def books_are_right(self) -> None:
        self.cache.check()
        for sequence, _ in self.sequences:
            sequence.check()


def run_histories(ground: Ground, max_examples: int, num_steps: int) -> None:
    """Search for a history after which some row differs."""
    machine = type("HistoryOfCase", (History,), {"ground": ground})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=max_examples, stateful_step_count=num_steps, deadline=None)
    )
