"""The cost model: learns a machine from its steps, keeps what it doesn't see, and isn't led astray by one bad step."""

from __future__ import annotations

import random

import pytest

from kvist.engine.cost import CostModel, Load, decode_load, first_guess, prefill_load

GUESS = first_guess(100_000_000, 23_040, 200_000)
TRUE = (6e-3, 9e-4, 3e-6, 2e-4, 9e-4, 5e-7, 1e-6)
"""A machine a few times slower than the guess."""


def true_s(load: Load) -> float:
    return TRUE[0] + sum(own * count for own, count in zip(TRUE[1:], load, strict=True))


def decodes(count: int, position: int) -> Load:
    return decode_load(count, count * position)


def taught(noise: float = 0.0) -> CostModel:
    model, chance = CostModel(GUESS), random.Random(1)
    for number in range(200):
        load = (
            prefill_load(256 * (number % 8), (256, 16)[number % 2], 0)
            if number % 3
            else decodes(1 + number % 9, 100 + 10 * number)
        )
        model.observe(load, true_s(load) * (1 + noise * chance.uniform(-1, 1)))
    return model


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_it_learns(noise: float) -> None:
    model = taught(noise)
    for load in (
        decodes(8, 500),
        decodes(1, 2000),
        prefill_load(1000, 256, 1),
        decodes(8, 300).plus(prefill_load(500, 40, 0)),
    ):
        assert model.predict(load) == pytest.approx(true_s(load), rel=0.15 + noise)


def test_it_remembers_what_it_no_longer_sees() -> None:
    model = taught()
    before = model.predict(prefill_load(1000, 256, 1))
    for number in range(2000):
        model.observe(decodes(4, 100 + number), true_s(decodes(4, 100 + number)))
    assert model.predict(prefill_load(1000, 256, 1)) == pytest.approx(before, rel=0.3)


def test_one_bad_step_changes_little() -> None:
    model = taught()
    load = decodes(4, 300)
    before = model.predict(load)
    model.observe(load, 100 * before)
    assert model.predict(load) < 2 * before
    for _ in range(20):
        model.observe(load, true_s(load))
    assert model.predict(load) == pytest.approx(true_s(load), rel=0.1)


def test_it_follows_a_machine_that_changes() -> None:
    model = taught()
    for number in range(60):
        load = decodes(4, 300 + number)
        model.observe(load, 3 * true_s(load))
    assert model.predict(decodes(4, 400)) == pytest.approx(3 * true_s(decodes(4, 400)), rel=0.15)


def test_nothing_is_ever_free() -> None:
    model = CostModel(GUESS)
    for _ in range(500):
        model.observe(prefill_load(100, 200, 1), 1e-9)
    assert all(coefficient > 0 for coefficient in model.coefficients)


def test_rows_within_a_time() -> None:
    model = taught()
    base = decodes(8, 200)
    limit = 3 * model.predict(base)
    counts = [model.rows_within(base, limit, position, 256) for position in (0, 2000, 6000)]
    assert counts[0] > counts[1] > counts[2] > 0
    for position, count in zip((0, 2000, 6000), counts, strict=True):
        assert model.predict(base.plus(prefill_load(position, count, 1))) <= limit
        assert model.predict(base.plus(prefill_load(position, 2 * count, 1))) > limit
    assert model.rows_within(base, float("inf"), 0, 256) == 256
    assert model.rows_within(base, 0.0, 0, 256) == 0


def test_what_decodes_take_is_not_learnt_beside_a_long_prompt() -> None:
    """All that is read grows together there: a machine that isn't quite linear leads nobody to think decodes slower."""
    model = taught()
    alone = model.predict(decodes(8, 200))
    for number in range(600):
        load = decodes(8, 200 + number).plus(prefill_load(10 * number, 20, 0))
        model.observe(load, true_s(load) + 2e-3 + 5e-5 * number)
    assert model.predict(decodes(8, 200)) == pytest.approx(alone, rel=0.15)
    assert model.predict(decodes(8, 800)) == pytest.approx(true_s(decodes(8, 800)), rel=0.25)
    for _ in range(40):
        model.observe(decodes(8, 200), 2 * true_s(decodes(8, 200)))
    assert model.predict(decodes(8, 200)) == pytest.approx(2 * true_s(decodes(8, 200)), rel=0.2)


def test_a_prompt_beside_decodes_is_learnt_in_some_steps() -> None:
    """Also where the guess was three times too low."""
    model = taught()
    for number in range(40):
        load = decodes(8, 200 + number).plus(prefill_load(3000 + 10 * number, 10, 0))
        model.observe(load, true_s(decodes(8, 200 + number)) + 3 * true_s(prefill_load(3000 + 10 * number, 10, 0)))
    load = decodes(8, 240).plus(prefill_load(3400, 10, 0))
    seconds = true_s(decodes(8, 240)) + 3 * true_s(prefill_load(3400, 10, 0))
    assert model.predict(load) == pytest.approx(seconds, rel=0.15)
