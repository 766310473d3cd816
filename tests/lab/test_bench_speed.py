from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tiny.models import tiny_model
from tiny.tensors import write_directory

from kvist.checkpoint.catalog import open_checkpoint
from kvist.errors import KvistError
from kvist.lab.bench_speed import LengthSpeed, SpeedBench, bench_speed
from kvist.lab.ceiling import BestProbe, Ceiling
from kvist.lab.timing import Timing
from kvist.lab.traffic import bytes_per_step
from kvist.model.decoder import Decoder, load_decoder
from kvist.spec.cache import CacheSpec

FAST = Ceiling(read_bandwidth=1e15, int_dot_peak=1e18, matmul_rate=2.6e12)


@dataclass
class FakeProbe:
    """Says what it was made with, and counts how often it was asked."""

    ceilings: list[Ceiling]
    asked: int = 0

    def measure(self) -> Ceiling:
        self.asked += 1
        return self.ceilings[min(self.asked, len(self.ceilings)) - 1]

    def read_bandwidth(self) -> float:
        return self.ceilings[0].read_bandwidth


@pytest.fixture
def decoder(tmp_path: Path) -> Iterator[Decoder]:
    with closing(open_checkpoint(write_directory(tiny_model("llama", 0), tmp_path / "model"))) as checkpoint:
        decoder = load_decoder(checkpoint, weights="q8", threads=2)
    yield decoder
    decoder.close()


def test_the_document_has_what_scripts_rely_on(decoder: Decoder) -> None:
    probe = FakeProbe([FAST])
    heard: list[LengthSpeed] = []
    bench = bench_speed(decoder, CacheSpec(), [64, 100], probe=BestProbe(probe), repeats=2, on_length=heard.append)
    document = json.loads(json.dumps(bench.as_json()))
    assert bench.ceiling.as_json() == {**vars(FAST), "matmul_factor": 2.0}
    assert [length["context"] for length in document["lengths"]] == [64, 100]
    assert tuple(heard) == bench.lengths
    assert probe.asked == 3
    for length in document["lengths"]:
        assert length["bytes_per_step"] == bytes_per_step(decoder, CacheSpec(), length["context"])
        assert length["read_bandwidth"] == 1e15
        assert length["share_of_bandwidth"] == pytest.approx(length["bytes_per_step"] / length["tpot_s"] / 1e15)
        assert length["prefill_tokens_per_s"] == pytest.approx(length["context"] / length["ttft_s"])
        assert length["prefill_tokens_per_s_scaled"] == pytest.approx(length["prefill_tokens_per_s"] / 2)
        assert 0 < length["share_of_int_dot"] < 1
        assert length["tpot_spread"]["repeats"] == 64
        assert length["ttft_spread"]["repeats"] == 2


def test_the_best_ceiling_counts(decoder: Decoder) -> None:
    probe = FakeProbe([Ceiling(1e15, 1e17, 1e12), Ceiling(1e14, 1e18, 1e12)])
    bench = bench_speed(decoder, CacheSpec(), [64], probe=BestProbe(probe), repeats=1)
    assert bench.ceiling == Ceiling(1e15, 1e18, 1e12)


def test_a_length_is_held_to_the_bandwidth_measured_around_it(decoder: Decoder) -> None:
    class Wandering(FakeProbe):
        def read_bandwidth(self) -> float:
            self.asked += 1
            return [1e14, 3e14, 2e14][self.asked % 3]

    speed = bench_speed(decoder, CacheSpec(), [64], probe=BestProbe(Wandering([FAST])), repeats=1).lengths[0]
    assert speed.read_bandwidth == 3e14  # of each pair the better, of those the median
    assert speed.share_of_bandwidth == speed.bytes_per_step / speed.tpot.median_s / 3e14


def test_a_share_above_the_ceiling_is_an_error() -> None:
    speed = LengthSpeed(64, Timing((1.0,)), Timing((1.0,)), 100.0, bytes_per_step=200, operations=10)
    with pytest.raises(KvistError, match=r"200.0% of the measured read bandwidth"):
        SpeedBench(Ceiling(100.0, 100.0, 100.0), (speed,), is_integer=True, weights_bytes=1)
    speed = replace(speed, read_bandwidth=1000.0)
    with pytest.raises(KvistError, match="integer-dot peak"):
        SpeedBench(Ceiling(1000.0, 5.0, 100.0), (speed,), is_integer=True, weights_bytes=1)
    SpeedBench(Ceiling(1000.0, 5.0, 100.0), (speed,), is_integer=False, weights_bytes=1)


@pytest.mark.parametrize("length", [8, 100_000])
def test_a_length_that_does_not_fit_is_refused(decoder: Decoder, length: int) -> None:
    with pytest.raises(KvistError, match=f"context of {length} tokens"):
        bench_speed(decoder, CacheSpec(), [length], probe=BestProbe(FakeProbe([FAST])))
