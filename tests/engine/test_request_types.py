"""What a request is made of: of its kind, or refused in one line when it is made; NumPy's numbers become Python's."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from fakes.model import install

from kvist import LLM
from kvist.engine.request import MAX_CHANGE, MAX_FACTOR, Request, SamplingParams
from kvist.errors import RequestError

HUGE = 10**5000
"""More digits than Python writes."""

SAMPLING: list[tuple[str, list[Any]]] = [
    ("max_tokens", [2.5, math.inf, "5", None, True, HUGE, np.array([1, 2])]),
    ("temperature", ["1", None, 10**400, HUGE, math.nan, True, 1j, np.zeros(2)]),
    ("top_k", [2.5, "1", None]),
    ("top_p", ["1", math.nan, -0.0]),
    ("min_p", [None, b"0"]),
    ("repetition_penalty", [0.0, 1e-320, 1e-7, 1e7, "1"]),
    ("presence_penalty", [-1e300, 1e39, None]),
    ("frequency_penalty", [1e300, "0"]),
    ("seed", [1.5, "1", True, HUGE]),
    ("logit_bias", [None, [1, 2], {1.5: 1}, {"1": 1}, {1: "a"}, {5: 1e39}, {5: -math.inf}, {True: 1}]),
    ("stop", [None, 5, [5], [None], b"a", ["a", ""], object()]),
    ("stop_token_ids", [None, 28, [28.0], "28", [True], {28: 1}]),
    ("logprobs", [2.5, "1", True]),
    ("ignore_eos", ["no", None, 2, np.zeros(2)]),
    ("n", ["1", 2.5, None]),
    ("best_of", ["1", 2.5, 0]),
    ("speculation", [2.5, "1", None]),
]
REQUEST: list[tuple[str, list[Any]]] = [
    ("token_ids", [(1.5, 2), "abc", b"abc", 5, None, {1, 2}, {1: 2}, (True,), np.array([1.0]), np.array([[1, 2]])]),
    ("params", [None, 5, {}]),
    ("is_cached", ["no", None]),
    ("choice", [2**70, -1, "x", 1.5]),
    ("priority", [10**400, -(10**400), "high", 1.5, None, True]),
    ("salt", [5, None, b"a", "\ud800"]),
    ("retention", ["window:16"]),
    ("on_limit", [3, [], np.zeros(2)]),
    ("num_first", [-1, 1.5, HUGE]),
]


def each(table: list[tuple[str, list[Any]]]) -> list[Any]:
    return [pytest.param(name, value, id=f"{name}-{number}") for name, row in table for number, value in enumerate(row)]


@pytest.mark.parametrize(("name", "value"), each(SAMPLING))
def test_sampling_of_another_kind(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"{name} must be .*, got ") as refused:
        SamplingParams(**{name: value})
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(("name", "value"), each(REQUEST))
def test_requests_of_another_kind(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=rf"{name} (must be .*, got |\")") as refused:
        Request(**{"token_ids": (1,), name: value})
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 200


def test_messages_say_what_is_allowed_and_what_came() -> None:
    for value, said in ((2.5, "a whole number, at least 1, got 2.5"), (0, "at least 1, got 0")):
        with pytest.raises(RequestError, match=f"^max_tokens must be {said}$"):
            SamplingParams(max_tokens=value)  # type: ignore[arg-type]


def test_numpys_numbers_become_pythons() -> None:
    params = SamplingParams(
        max_tokens=np.int8(5), temperature=np.float32(0.5), top_k=np.uint8(3), seed=np.uint64(2**63 + 1),
        logit_bias={np.int64(3): np.float64(1)}, stop_token_ids=np.array([1, 2]), ignore_eos=np.True_,
        logprobs=np.int64(2),
    )  # type: ignore[arg-type]  # fmt: skip
    assert params == SamplingParams(
        max_tokens=5, temperature=0.5, top_k=3, seed=2**63 + 1, logit_bias={3: 1.0}, stop_token_ids=(1, 2),
        ignore_eos=True, logprobs=2,
    )  # fmt: skip
    found = (params.max_tokens, params.top_k, params.seed, *params.logit_bias, *params.stop_token_ids, params.logprobs)
    assert {type(value) for value in found} == {int}
    assert {type(value) for value in (params.temperature, *params.logit_bias.values())} == {float}


@pytest.mark.parametrize("token_ids", [[1, 2], np.array([1, 2]), (np.int8(1), 2), range(1, 3), iter((1, 2))], ids=str)
def test_a_prompt_may_come_in_anything_that_has_an_order(token_ids: Any) -> None:
    request = Request(token_ids, choice=np.int64(2), priority=np.int64(3))  # type: ignore[arg-type]
    assert request == Request((1, 2), choice=2, priority=3)
    assert {type(value) for value in (*request.token_ids, request.choice, request.priority)} == {int}


def test_a_seed_of_numpys_draws_as_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    with LLM("any") as model:
        for given, same in ((np.uint64(2**63 + 1), 2**63 + 1), (np.int64(3), 3)):
            first, second = (
                model.generate("x", SamplingParams(max_tokens=12, temperature=1, seed=seed)) for seed in (given, same)
            )
            assert first.token_ids == second.token_ids


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_changes_are_finite_together(sign: int, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    change = sign * MAX_CHANGE
    params = SamplingParams(
        max_tokens=40, temperature=1e300, repetition_penalty=MAX_FACTOR**sign, presence_penalty=change,
        frequency_penalty=change, logit_bias={5: MAX_CHANGE, 6: -MAX_CHANGE}, ignore_eos=True, logprobs=2, seed=1,
    )  # fmt: skip
    with LLM("any") as model, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.generate("abc", params).generated_tokens == 40


def test_an_engine_takes_requests_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    with LLM("any") as model, pytest.raises(RequestError, match="must be a Request, got 'abc'"):
        model.engine.add("abc")  # type: ignore[arg-type]
