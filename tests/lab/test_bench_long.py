"""A long text in constant memory, on a tiny model: the three ways through it agree where they must."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from proof.cases import CASES, Case
from tiny.stream import Stream

from kvist.lab import bench_long
from kvist.lab.bench_long import LongText, generate_long, perplexity
from kvist.model.decoder import Decoder
from kvist.spec.cache import CacheSpec, allocated_bytes
from kvist.spec.retention import RetentionSpec

FULL = Case("full", {**CASES["f32"].config}, codec="f32")
SPEC = CacheSpec("f32", retention=RetentionSpec("sinks", 60, 4))


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decoder]:
    made = FULL.load(FULL.write(tmp_path_factory.mktemp("long")))
    yield made
    made.close()


def text(length: int) -> list[int]:
    return Stream(2, "long").integers(length, 67)


def test_segments_cover_the_text(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_long, "PROBE_TOKENS", 10)
    entered = []
    found = list(LongText(decoder, SPEC, text(500), entered.append).segments(200, 3))
    assert [(one.first_token, one.num_tokens) for one in found] == [(0, 200), (200, 200), (400, 99)]
    assert [one.probed_tokens for one in found] == [20, 30, 20 if 466 + 10 > 499 else 30]
    for one in found:
        assert one.probed_streamed is not None and one.ratio is not None
        assert all(value > 1 for value in (one.streamed, one.without_sinks, one.probed_streamed))
        assert 0.8 < one.ratio < 1.25, "random text, random weights: no way predicts better than another"
    assert sum(entered) > 2 * 500
    assert found[0].as_json()["ratio"] == found[0].ratio


def test_until_something_is_dropped_the_stream_is_the_recomputed(decoder: Decoder) -> None:
    """At the first position of which the window has left the sinks by nothing, both are the same text."""
    walk = LongText(decoder, SPEC, text(300))
    with walk._walk(SPEC.retention, text(300)) as stream:
        streamed = stream.losses(299)
    assert walk._recomputed(63).tolist() == streamed[63 : 63 + bench_long.PROBE_TOKENS].tolist()
    later = walk._recomputed(150)
    assert later.tolist() != streamed[150 : 150 + len(later)].tolist(), "its past was computed with a past of its own"


def test_generating_holds_no_more_and_no_more(decoder: Decoder) -> None:
    marks = list(generate_long(decoder, SPEC, text(64), 900))
    assert [mark.num_tokens for mark in marks] == [90 * n for n in range(1, 11)]
    held = {mark.allocated_bytes for mark in marks[1:]}
    most = max(allocated_bytes(decoder.spec, SPEC, n) for n in range(200, 240))
    assert max(held) <= most
    assert max(held) - min(held) <= 16 * (most // 96), "a block more or less"
    assert all(mark.elapsed_s > 0 for mark in marks)


def test_perplexity() -> None:
    assert perplexity(np.log(np.array([2.0, 8.0]))) == pytest.approx(4.0)
