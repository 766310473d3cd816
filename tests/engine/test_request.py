"""Settings out of their range are refused in one line that says the range."""

from __future__ import annotations

import math

import pytest

from kvist import KvistError
from kvist.engine.request import SamplingParams
from kvist.errors import RequestError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("presence_penalty", math.inf),
        ("frequency_penalty", math.nan),
        ("seed", -1),
        ("seed", 2**64),
        ("logit_bias", {3: math.inf}),
        ("stop", ("",)),
        ("logprobs", 101),
        ("logprobs", -1),
    ],
)
def test_out_of_range(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        SamplingParams(**{name: value})
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, KvistError)


def test_stop_may_be_one_string_or_several() -> None:
    assert SamplingParams(stop="end").stop_strings == ("end",)
    assert SamplingParams(stop=["a", "b"]).stop_strings == ("a", "b")
    assert SamplingParams().stop_strings == ()


def test_token_ids_must_be_in_the_vocabulary() -> None:
    params = SamplingParams(logit_bias={9: 1.0}, stop_token_ids=[4])
    params.check_token_ids(10)
    with pytest.raises(RequestError, match="logit_bias must be token ids from 0 to 8, got 9"):
        params.check_token_ids(9)
    with pytest.raises(RequestError, match="stop_token_ids"):
        SamplingParams(stop_token_ids=(-1,)).check_token_ids(9)


def test_the_default_is_greedy() -> None:
    assert SamplingParams().is_greedy
    assert not SamplingParams(temperature=0.1).is_greedy
