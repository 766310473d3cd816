"""Windows and sinks of sequences: the logits of the lesson that keeps everything and masks, the same bytes in pieces.

Each sequence brings its own rule, so one pass may hold several.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proof.cases import CASES, CONTEXT, Case
from proof.ground import differing, texts
from tiny import bounded
from tiny.compare import TOLERANCE, row_errors
from tiny.lesson import lesson

from kvist.cache.kv_cache import KvCache
from kvist.model.decoder import Decoder, Part
from kvist.spec.retention import RetentionSpec

Logits = np.ndarray[Any, np.dtype[np.float32]]
LENGTH = 560
RULES = {
    str(rule) + (f" from {rule.starts_at}" if rule.starts_at else ""): rule
    for rule in (
        RetentionSpec("window", 1),
        RetentionSpec("window", 20),
        RetentionSpec("window", 300),
        RetentionSpec("sinks", 40, 1),
        RetentionSpec("sinks", 60, 4),
        RetentionSpec("sinks", 1, 17),
        RetentionSpec("sinks", 300, 30),
        RetentionSpec("sinks", 100, 256),
        RetentionSpec("sinks", 250, 4, starts_at=254),
        RetentionSpec("window", 64, starts_at=270),
    )
}
KINDS = {
    "rotary": replace(CASES["f32"], form="directory", codec="f32"),
    "window in one layer": replace(CASES["mixed"], weights=None, codec="f32"),
    "learned": CASES["learned"],
}


class Ground:
    """A decoder, a text, and its logits by rule, computed whole."""

    def __init__(self, case: Case, path: Any) -> None:
        self.case, self.decoder = case, case.load(case.write(path), threads=1)
        self.text = texts(self.decoder.spec.vocab_size)[0][:LENGTH]
        self.expected = {name: in_pieces(self, self.new_cache(), rule, [256]) for name, rule in RULES.items()}

    def new_cache(self, num_sequences: int = 1) -> KvCache:
        return self.case.new_cache(self.decoder, num_sequences)


def in_pieces(ground: Any, cache: KvCache, rule: RetentionSpec, sizes: list[int]) -> Logits:
    """Logits of every position, fed in pieces of the given sizes, the last one again and again."""
    sequence, rows, start, size, queue = cache.new_sequence(retention=rule), [], 0, 1, iter(sizes)
    while start < LENGTH:
        size = next(queue, size)
        rows.append(ground.decoder.forward([Part(sequence, ground.text[start : start + size], "all")]))
        sequence.drop_unseen()
        sequence.check()
        start += size
    sequence.release()
    return np.concatenate(rows)


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def ground(request, tmp_path_factory) -> Iterator[Ground]:
    ground = Ground(request.param, tmp_path_factory.mktemp(request.param.name))
    yield ground
    ground.decoder.close()


@pytest.mark.parametrize("name", RULES)
def test_the_lesson_with_everything_kept_and_masked(ground: Ground, name: str) -> None:
    weights, config = lesson(ground.case.model)
    oracle = bounded.forward(weights, config, ground.text, RULES[name])
    assert row_errors(ground.expected[name], oracle).max() < TOLERANCE


def test_rules_differ(ground: Ground) -> None:
    """Else the comparisons hold nothing."""
    for one, other in itertools.combinations(ground.expected.values(), 2):
        assert row_errors(one, other).max() > 100 * TOLERANCE


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=5)
@given(sizes=st.lists(st.integers(1, 5) | st.integers(1, 256), min_size=1, max_size=30))
def test_any_pieces(ground: Ground, name: str, sizes: list[int]) -> None:
    """Over a cache that says NaN wherever nothing was written; what was dropped is never read."""
    found = in_pieces(ground, ground.new_cache(), RULES[name], [*sizes, 90])
    assert differing(found, ground.expected[name]) == []


@settings(max_examples=10)
@given(
    names=st.lists(st.sampled_from([*RULES]), min_size=2, max_size=4),
    sizes=st.lists(st.integers(1, 3) | st.integers(50, 200), min_size=1, max_size=7),
)
def test_several_rules_in_a_pass(ground: Ground, names: list[str], sizes: list[int]) -> None:
    cache, queue = ground.new_cache(4), itertools.cycle([*sizes, 30])
    sequences = [cache.new_sequence(retention=RULES[name]) for name in names]
    while any(sequence.num_tokens < LENGTH for sequence in sequences):
        room, parts, wanted = ground.decoder.step_tokens, [], []
        for sequence, name in zip(sequences, names, strict=True):
            start = sequence.num_tokens
            end = min(start + next(queue), start + room, LENGTH)
            if end > start:
                parts.append(Part(sequence, ground.text[start:end], "all"))
                wanted.append(ground.expected[name][start:end])
                room -= end - start
        if parts:
            assert differing(ground.decoder.forward(parts, is_copied=False), np.concatenate(wanted)) == []
        for part in parts:
            part.sequence.drop_unseen()
    cache.check()


@pytest.mark.parametrize("threads", [2, 3])
def test_threads(ground: Ground, threads: int, tmp_path: Any) -> None:
    decoder = ground.case.load(ground.case.write(tmp_path), threads)
    other = type("Other", (), {"decoder": decoder, "text": ground.text})
    for name in ("window:20", "sinks:4+60", "sinks:30+300"):
        found = in_pieces(other, ground.case.new_cache(decoder), RULES[name], [256, 3, *[1] * 20, 64])
        assert differing(found, ground.expected[name]) == []
    decoder.close()


def test_what_is_dropped_is_given_back(ground: Ground) -> None:
    cache = ground.new_cache()
    sequence = cache.new_sequence(retention=RULES["sinks:4+60"])
    for start in range(0, LENGTH, 16):
        ground.decoder.forward([Part(sequence, ground.text[start : start + 16], "none")])
        sequence.drop_unseen()
    assert [len(table.held) for table in sequence.tables] == [
        group.num_blocks(LENGTH) for group in sequence.scope.groups
    ]
    assert max(len(table.held) for table in sequence.tables) <= 7
    assert CONTEXT > LENGTH
    assert isinstance(ground.decoder, Decoder)


@pytest.mark.parametrize("name", ["int8", "int4", "codecs"])
def test_in_fewer_bits(name: str, tmp_path: Any) -> None:
    """The same bytes in any pieces, too, where keys and values are small whole numbers."""
    ground = Ground(CASES[name], tmp_path)
    for rule, expected in ground.expected.items():
        for sizes in ([1, 2, 3, 5, 100, 33], [250, 4, 1, 64]):
            assert differing(in_pieces(ground, ground.new_cache(), RULES[rule], sizes), expected) == []
    ground.decoder.close()
