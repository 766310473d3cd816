"""Many requests in one engine, on a decoder whose logits give away any wrong prefix (see ``proof.many``)."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from fakes.decoder import FakeDecoder
from fakes.model import byte_tokenizer, fake_spec
from proof.many import Stage, run, search

from kvist.cache.kv_cache import KvCache
from kvist.engine.policy import POLICIES
from kvist.engine.request import Request, SamplingParams
from kvist.spec.cache import CacheSpec
from kvist.spec.retention import parse_retention

LONGEST = 70
KEPT = [None, None, parse_retention("window:20"), parse_retention("sinks:4+20")]


def fake_stage(name: str, windows: tuple[int | None, ...]) -> Stage:
    """A model of a layer with each of these windows."""
    model = replace(fake_spec(LONGEST), layers=tuple(fake_spec(LONGEST, window).layers[0] for window in windows))

    def new_cache(num_sequences: int, step_tokens: int) -> KvCache:
        return KvCache(model, CacheSpec(), num_tokens=LONGEST, num_sequences=num_sequences, step_tokens=step_tokens)

    more = {"tokenizer": byte_tokenizer()}
    return Stage(name, [FakeDecoder(model)], new_cache, LONGEST, 250, more, KEPT)  # type: ignore[list-item]


STAGES = [
    fake_stage("full", (None,)),
    fake_stage("window of 12", (12,)),
    fake_stage("window of 33", (33,)),
    fake_stage("both", (20, None)),
]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_each_gets_what_it_gets_alone(stage: Stage) -> None:
    search(stage, 40, most_arrivals=7, most_tokens=20)


@pytest.mark.parametrize("swap_share", [0.0, 0.5, 5.0])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_pool_for_3_of_16_serves_all(policy: str, swap_share: float) -> None:
    stage = STAGES[0]
    with stage.engine(num_sequences=3, policy=policy, step_tokens=64, swap_share=swap_share) as engine:
        params = SamplingParams(max_tokens=LONGEST - 20, ignore_eos=True)
        tickets = [engine.add(Request((number,) * 20, params, has_digest=True)) for number in range(16)]
        run(engine, tickets)
        for ticket in tickets:
            assert ticket.result.finish_reason == "length"
        assert engine.stats().num_preemptions > 0
        if swap_share == 5.0:  # nothing is computed twice
            assert engine.stats().forward_tokens == sum(
                ticket.result.prompt_tokens + LONGEST - 21 for ticket in tickets
            )
    for ticket in tickets:
        stage.check_same(ticket)


def test_ten_thousand_requests_leak_nothing() -> None:
    """They come in any order, most alike, many cancelled; what is checked is in ``Stage.engine``."""
    chance, stage = random.Random(4), STAGES[3]
    with stage.engine(num_sequences=4, policy="cache", swap_share=0.5) as engine:
        num_left, under_way = 10_000, []
        while num_left or under_way:
            for _ in range(min(num_left, chance.randrange(12) if len(under_way) < 40 else 0)):
                prompt = (chance.randrange(3),) * chance.randrange(1, 40) + (chance.randrange(200),)
                max_tokens, num_choices = chance.choice((1, 2, 12)), chance.choice((1, 1, 2))
                params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, n=num_choices)
                request = Request(prompt, params, salt=chance.choice(("", "a")), is_shared=chance.random() < 0.9)
                under_way.append(engine.add(request))
                num_left -= 1
            for ticket in under_way:
                if chance.random() < 0.02:
                    engine.cancel(ticket.id)
            engine.step()
            if chance.random() < 0.01:
                engine._cache.check()
            under_way = [ticket for ticket in under_way if not ticket.is_finished]
        stats = engine.stats()
        assert (stats.num_running, stats.num_waiting, stats.blocks_used) == (0, 0, 0)
        assert stats.num_finished >= 10_000
        assert stats.num_evictions > 1000
