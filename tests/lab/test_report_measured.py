"""What a report measures, on a tiny model: shapes and identities, never times."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from lab import report_data
from lab.schemas import validator
from proof.cases import CASES

from kvist.checkpoint.catalog import open_checkpoint
from kvist.lab.ceiling import BestProbe, Ceiling
from kvist.lab.report import measure
from kvist.lab.report.effort import Effort
from kvist.model.decoder import load_decoder
from kvist.spec.cache import CacheSpec

EFFORT = Effort(
    lengths=(64, 100),
    repeats=1,
    crowd_users=4,
    crowd_tokens=8,
    text_tokens=96,
    text_context=48,
    kept=24,
    codecs=("bf16",),
    arrivals=((0, 20, 6), (2, 60, 3), (3, 5, 4)),
)
FAST = Ceiling(read_bandwidth=1e15, int_dot_peak=1e18, matmul_rate=1e12)


class Probe:
    def measure(self) -> Ceiling:
        return FAST

    def read_bandwidth(self) -> float:
        return FAST.read_bandwidth


class Letters:
    """A tokenizer of a few letters."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:  # noqa: ARG002
        return [ord(character) % 67 for character in text]


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    case = CASES["q4_1"]
    with closing(open_checkpoint(case.write(tmp_path_factory.mktemp("report")))) as checkpoint:
        with closing(load_decoder(checkpoint, threads=2)) as decoder:
            files: Any = SimpleNamespace(checkpoint=checkpoint, spec=decoder.spec, require_tokenizer=Letters)
            found = {
                "roofline": measure.roofline(decoder, CacheSpec(), BestProbe(Probe()), EFFORT, bool),
                "timeline": measure.timeline(decoder, CacheSpec(), EFFORT),
                "smaller": measure.smaller_caches(files, decoder, EFFORT, bool),
            }
        yield found


def test_the_figures_are_as_the_schema_says(figures: dict[str, Any]) -> None:
    document = report_data.document()
    document["figures"] |= figures
    validator("report").validate(json.loads(json.dumps(document, allow_nan=False)))


def test_work_and_bytes_of_the_roofline(figures: dict[str, Any]) -> None:
    decodes, prefills = (
        [p for p in figures["roofline"]["points"] if p["kind"] == kind] for kind in ("decode", "prefill")
    )
    (several,) = [point for point in figures["roofline"]["points"] if point["kind"] == "users"]
    assert [point["context"] for point in decodes] == [point["context"] for point in prefills] == [64, 100]
    assert len({point["operations"] for point in decodes}) == 1
    assert 1 < several["users"] <= 4
    assert several["operations"] == several["users"] * decodes[0]["operations"]
    assert decodes[0]["bytes"] < several["bytes"] < several["users"] * decodes[1]["bytes"]
    for decode, prefill in zip(decodes, prefills, strict=True):
        assert prefill["operations_per_byte"] > 10 * decode["operations_per_byte"]


def test_requests_come_as_they_are_said_to(figures: dict[str, Any]) -> None:
    lanes = figures["timeline"]["requests"]
    assert [(lane["prompt_tokens"], lane["generated_tokens"]) for lane in lanes] == [(20, 6), (60, 3), (5, 4)]
    for lane in lanes:
        moments = [lane["asked_s"], lane["admitted_s"], *lane["token_s"]]
        assert moments == sorted(moments)


def test_smaller_caches_take_less_and_bf16_costs_least(figures: dict[str, Any]) -> None:
    whole, window, sinks = figures["smaller"]["rows"]
    assert [row["retention"] for row in (whole, window, sinks)] == ["all", "window:24", "sinks:4+20"]
    assert figures["smaller"]["compared_tokens"] == 2 * 47
    assert window["bytes"] <= sinks["bytes"] <= whole["bytes"]
    assert whole["kl_mean"] < window["kl_mean"]
