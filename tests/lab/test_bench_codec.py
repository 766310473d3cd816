from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from lab.test_bench_speed import FAST, FakeProbe
from tiny.models import tiny_model
from tiny.tensors import write_directory

from kvist.checkpoint.catalog import open_checkpoint
from kvist.errors import KvistError
from kvist.lab.bench_codec import CodecBench, CodecSpeed, bench_codec
from kvist.lab.ceiling import BestProbe
from kvist.lab.timing import Timing
from kvist.lab.traffic import kv_bytes
from kvist.model.decoder import Decoder, load_decoder
from kvist.spec.cache import CacheSpec, bytes_per_token

SPECS = (CacheSpec("bf16"), CacheSpec("f32"))


@pytest.fixture
def decoder(tmp_path: Path) -> Iterator[Decoder]:
    with closing(open_checkpoint(write_directory(tiny_model("llama", 0), tmp_path / "model"))) as checkpoint:
        decoder = load_decoder(checkpoint, weights="q8", threads=2)
    yield decoder
    decoder.close()


def test_every_codec_is_measured_at_every_length(decoder: Decoder) -> None:
    probe, heard = FakeProbe([FAST]), []
    bench = bench_codec(decoder, SPECS, [64, 100], probe=BestProbe(probe), repeats=2, on_speed=heard.append)
    assert heard == list(bench.speeds)
    assert probe.asked == 3
    document = json.loads(json.dumps(bench.as_json()))
    assert [codec["k"] for codec in document["codecs"]] == ["bf16", "f32"]
    for spec, codec in zip(SPECS, document["codecs"], strict=True):
        assert codec["bytes_per_token"] == bytes_per_token(decoder.spec, spec)
        assert codec["bytes_ratio"] == (1 if spec == SPECS[0] else 2)
        assert [length["context"] for length in codec["lengths"]] == [64, 100]
        for length in codec["lengths"]:
            assert length["kv_bytes"] == kv_bytes(decoder.spec, spec, length["context"])
            assert length["tpot_spread"]["repeats"] == 64
            assert length["ttft_spread"]["repeats"] == 2


def test_the_first_codec_is_what_others_are_compared_with(decoder: Decoder) -> None:
    times = ((SPECS[0], 0.02, 4.0), (SPECS[1], 0.01, 5.0))
    speeds = tuple(CodecSpeed(spec, 100, Timing((tpot,)), Timing((ttft,))) for spec, tpot, ttft in times)
    document = json.loads(json.dumps(CodecBench(decoder.spec, SPECS, speeds, FAST).as_json()))
    (first,), (other,) = (codec["lengths"] for codec in document["codecs"])
    assert (first["decode_speedup"], first["prefill_speedup"]) == (1, 1)
    assert (other["decode_speedup"], other["prefill_speedup"]) == (2, 0.8)
    assert (first["prefill_tokens_per_s"], first["prefill_tokens_per_s_scaled"]) == (25, 12.5)


def test_a_length_that_does_not_fit_is_refused(decoder: Decoder) -> None:
    with pytest.raises(KvistError, match=r"context of 3 tokens; this model takes 64 to \d+"):
        bench_codec(decoder, SPECS, [3], probe=BestProbe(FakeProbe([FAST])))
