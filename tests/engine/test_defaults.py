"""A model's generation_config is followed as transformers follows it."""

from __future__ import annotations

import pytest

from kvist.engine.defaults import default_params, end_token_ids
from kvist.engine.request import SamplingParams
from kvist.errors import CheckpointError


def test_without_do_sample_the_choice_is_greedy() -> None:
    assert default_params({}) == SamplingParams()
    assert default_params({"temperature": 0.6, "top_k": 20}) == SamplingParams()
    assert default_params({"do_sample": False, "temperature": 0.6}) == SamplingParams()


def test_sampling_settings() -> None:
    config = {"do_sample": True, "temperature": 0.6, "top_k": 20.0, "top_p": 0.95, "min_p": None, "num_beams": 4}
    assert default_params(config) == SamplingParams(temperature=0.6, top_k=20, top_p=0.95)
    assert default_params({"do_sample": True}).temperature == 1.0


def test_a_repetition_penalty_holds_for_greedy_too() -> None:
    assert default_params({"repetition_penalty": 1.1}) == SamplingParams(repetition_penalty=1.1)


@pytest.mark.parametrize("value", ["hot", [1.0], True, -1.0, float("nan")])
def test_bad_values_are_the_files_fault(value: object) -> None:
    with pytest.raises(CheckpointError, match=r"temperature.*generation_config|generation_config.*temperature"):
        default_params({"do_sample": True, "temperature": value})


@pytest.mark.parametrize(
    ("value", "ids"), [(None, set()), (2, {2}), ([2, 5], {2, 5}), ("</s>", set()), ([2, None, True], {2})]
)
def test_end_token_ids(value: object, ids: set[int]) -> None:
    assert end_token_ids({"eos_token_id": value}) == ids


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 0.5, -1, "many"])
def test_a_top_k_that_is_no_whole_number_is_the_files_fault(value: object) -> None:
    with pytest.raises(CheckpointError, match=r"top_k"):
        default_params({"do_sample": True, "top_k": value})
