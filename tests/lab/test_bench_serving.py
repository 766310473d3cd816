"""The benchmarks of many users on the fake model with a clock of its own: shapes and identities, never times."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from statistics import median

import pytest
from fakes.decoder import FakeDecoder
from fakes.model import fake_spec, install

from kvist import LLM
from kvist.cache.kv_cache import KvCache
from kvist.engine.engine import Engine
from kvist.engine.request import Request
from kvist.errors import RequestError
from kvist.lab.bench_prefix import NEW_TOKENS, OWN_TOKENS, bench_prefix
from kvist.lab.bench_schedule import ALONE_STEPS, Round, bench_schedule
from kvist.lab.bench_speculation import bench_speculation
from kvist.lab.bench_throughput import bench_throughput, serve
from kvist.lab.ceiling import BestProbe, Ceiling
from kvist.lab.crowd import Crowd, greedy, made_up_ids, new_salt
from kvist.lab.figures import save_figure
from kvist.lab.figures_bench import draw_schedule
from kvist.lab.samples import SAMPLES, Sample
from kvist.spec.cache import CacheSpec, pool_bytes

CEILING = Ceiling(read_bandwidth=1e10, int_dot_peak=1e12, matmul_rate=2.6e12)


class Probe:
    def measure(self) -> Ceiling:
        return CEILING

    def read_bandwidth(self) -> float:
        return CEILING.read_bandwidth


def new_engine(num_tokens: int, *, context: int = 4096, step_tokens: int = 256) -> Engine:
    """Return an engine whose pool holds ``num_tokens``, with a clock that goes on by a millisecond at each look."""
    spec, cache = fake_spec(context), CacheSpec()
    ticks = count()
    return Engine(
        FakeDecoder(spec, step_tokens=step_tokens),
        KvCache(spec, cache, num_tokens=context, budget=pool_bytes(spec, cache, num_tokens, 256)),
        cache,
        context_length=context,
        clock=lambda: 1e-3 * next(ticks),
    )


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = new_engine(4096)
    yield engine
    assert not engine.has_work


# ---- crowds --------------------------------------------------------------------------------------------------------


def test_users_prompts_differ_from_the_first_token_on() -> None:
    prompts = [made_up_ids(49_152, 50, user) for user in range(64)]
    assert len({prompt[0] for prompt in prompts}) == 64
    assert all(0 <= token_id < 49_152 for prompt in prompts for token_id in prompt)
    assert new_salt() != new_salt()


def test_a_crowd_notes_every_token_once(engine: Engine) -> None:
    crowd = Crowd(engine)
    records = [crowd.ask(Request(made_up_ids(264, 20, user), greedy(3 + user))) for user in range(4)]
    crowd.finish()
    assert [len(record.token_s) for record in records] == [3, 4, 5, 6]
    assert crowd.num_generated == sum(step.num_tokens for step in crowd.steps) == 18
    for record in records:
        assert record.asked_s < record.token_s[0]
        assert record.token_s == sorted(set(record.token_s))
        assert sum(record.gaps_s) == pytest.approx(record.token_s[-1] - record.token_s[0])
        assert record.ttft_s > 0
    assert crowd.wall_s == pytest.approx(crowd.steps[-1].end_s - records[0].asked_s)
    assert 0 < crowd.mean_waste < 1


# ---- throughput ----------------------------------------------------------------------------------------------------


def test_throughput_is_of_the_whole_run(engine: Engine) -> None:
    heard: list[int] = []
    bench = bench_throughput(
        engine,
        [1, 4],
        probe=BestProbe(Probe()),
        prompt_tokens=40,
        generated_tokens=8,
        on_run=lambda run: heard.append(run.users),
    )
    assert heard == [1, 4]
    document = json.loads(json.dumps(bench.as_json()))
    assert bench.ceiling.matmul_factor == 2.0
    for run, users in zip(document["runs"], (1, 4), strict=True):
        assert run["users"] == users
        assert run["generated_tokens_per_s"] == pytest.approx(users * 8 / run["wall_s"])
        assert run["generated_tokens_per_s_scaled"] == pytest.approx(run["generated_tokens_per_s"] / 2)
        assert run["best_tokens_per_s"] >= run["generated_tokens_per_s"]
        assert 0 < run["ttft_s"] <= run["ttft_p99_s"] <= run["wall_s"]
        assert 0 < run["itl_s"] <= run["itl_p99_s"] <= run["wall_s"]
        assert 0 < run["waste"] < 1
        assert run["repeats"] == 3
    assert "users" not in document


def test_one_number_of_users_stands_at_the_top(engine: Engine) -> None:
    bench = bench_throughput(engine, [2], probe=BestProbe(Probe()), prompt_tokens=16, generated_tokens=4, repeats=1)
    document = bench.as_json()
    assert {"users", "generated_tokens_per_s", "wall_s", "ttft_s", "itl_s", "waste"} <= set(document)
    assert document["runs"] == [{key: document[key] for key in document["runs"][0]}]  # type: ignore[index]


def test_no_run_finds_what_another_left(engine: Engine) -> None:
    serve(engine, 3, 40, 4)
    serve(engine, 3, 40, 4)
    assert engine.stats().cached_tokens == 0


# ---- prefix --------------------------------------------------------------------------------------------------------


def test_a_hit_computes_what_is_new_and_shared_blocks_are_found() -> None:
    engine = new_engine(4096)
    heard: list[str] = []
    bench = bench_prefix(engine, 100, prefix_tokens=200, users=4, repeats=2, on_phase=heard.append)
    document = json.loads(json.dumps(bench.as_json()))
    assert len(heard) == 4
    assert document["hit_tokens"] == 200
    assert document["new_tokens"] == NEW_TOKENS
    assert document["ttft_ratio"] == pytest.approx(document["cold_ttft_s"] / document["hit_ttft_s"])
    assert document["shared"]["cached_tokens"] == document["distinct"]["cached_tokens"] == 4 * 200
    own = document["shared"]["context"] - 200
    assert own > OWN_TOKENS
    assert document["shared"]["kv_bytes_per_step"] == 100 * (200 + 4 * own)
    assert document["distinct"]["kv_bytes_per_step"] == 100 * 4 * (200 + own)
    assert document["decode_ratio"] == pytest.approx(
        document["shared"]["tokens_per_s"] / document["distinct"]["tokens_per_s"]
    )
    assert document["attention_s"]["shared"] == document["shared"]["step_s"] - document["short"]["step_s"]


# ---- speculation ---------------------------------------------------------------------------------------------------


def test_speculation_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_spec(512), answer=list(b"ab ab ab ab ab ab ab ab. "))
    samples = (Sample("again", True, "ab ab ab", 24), Sample("other", False, "Why?", 20))
    with LLM("any") as llm:
        bench = bench_speculation(llm, samples, draft_tokens=4, repeats=2)
        with pytest.raises(RequestError, match="draft_tokens must be at least 1"):
            bench_speculation(llm, samples, draft_tokens=0)
    document = json.loads(json.dumps(bench.as_json()))
    assert document["identical"] is True
    assert [found["name"] for found in document["samples"]] == ["again", "other"]
    again, other = document["samples"]
    assert again["drafted_tokens"] >= again["accepted_tokens"] > 0
    assert again["acceptance"] == again["accepted_tokens"] / again["drafted_tokens"]
    assert again["text"].startswith("ab ab")
    assert (document["least_speedup_repeating"], document["least_speedup_other"]) == (
        again["speedup"],
        other["speedup"],
    )


def test_the_samples_are_of_both_kinds() -> None:
    assert {sample.repeats for sample in SAMPLES} == {True, False}
    assert len({sample.name for sample in SAMPLES}) == len(SAMPLES)


# ---- schedule ------------------------------------------------------------------------------------------------------


def test_gaps_before_and_after_the_arrival(tmp_path: Path) -> None:
    engine = new_engine(20_000, context=2048, step_tokens=64)
    heard: list[Round] = []
    bench = bench_schedule(engine, users=3, prompt_tokens=600, rounds=2, on_round=heard.append)
    assert not engine.has_work
    assert tuple(heard) == bench.rounds
    document = json.loads(json.dumps(bench.as_json()))
    for found, told in zip(bench.rounds, document["rounds"], strict=True):
        before, after = ([gap for at, gap in found.gaps if (at < 0) == is_before] for is_before in (True, False))
        assert len(before) == 3 * ALONE_STEPS
        assert len(after) == told["gaps"] > 3
        assert len(found.gaps_alone) == pytest.approx(len(after), abs=3)
        assert told["stretch"] == pytest.approx(max(after) / median(found.gaps_alone))
        assert told["stretch_of_before"] == pytest.approx(max(after) / median(before))
        assert told["stretch_alone"] == pytest.approx(max(found.gaps_alone) / median(found.gaps_alone))
        assert told["prefill_share"] == pytest.approx(found.alone_s / found.prefill_s)
        assert told["prefill_tokens_per_s"] == pytest.approx(600 / found.prefill_s)
        assert max(at for at, _ in found.gaps) <= found.prefill_s
    assert document["worst_stretch"] == max(told["stretch"] for told in document["rounds"])
    save_figure(draw_schedule(bench.rounds[0], 3, "fake"), tmp_path / "schedule.svg")
    assert (tmp_path / "schedule.svg").stat().st_size > 1000
