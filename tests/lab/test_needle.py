from __future__ import annotations

import numpy as np
import pytest
from fakes.model import byte_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from kvist.engine.files import open_model
from kvist.errors import RequestError
from kvist.lab.needle import CHANCE, DEPTHS, KEYS, Needle, make_needle

TOKENIZER = byte_tokenizer()
HAY = list(b"straw " * 200)


def text(ids: tuple[int, ...]) -> str:
    return TOKENIZER.decode(ids)


@given(st.floats(0, 1), st.integers(0, 30), st.integers(200, 1000))
def test_the_key_is_hidden_once_at_its_depth(depth: float, number: int, num_tokens: int) -> None:
    needle = make_needle(TOKENIZER, HAY, num_tokens, number, depth)
    key = KEYS[number % len(KEYS)]
    prompt = text(needle.prompt_ids)
    assert len(needle.token_ids) == num_tokens
    assert text(needle.key_ids) == key
    assert prompt.count(f"The pass key is {key}.") == 1
    assert prompt.endswith("What is the pass key? The pass key is ")
    before, _, after = prompt.partition("\n\nThe pass key is")
    behind = after.partition("is the pass key.\n\n")[2].removesuffix("\n\nWhat is the pass key? The pass key is ")
    assert before + behind == "straw " * (len(before + behind) // 6) + "straw "[: len(before + behind) % 6]
    assert len(before) == round(depth * len(before + behind))


def test_distractors_have_every_other_digit_at_each_place() -> None:
    needle = make_needle(TOKENIZER, HAY, 500, 0, 0.5)
    for place, key_id in enumerate(needle.key_ids):
        others = {ids[place] for ids in needle.distractor_ids}
        assert others | {key_id} == set(b"0123456789")
        assert key_id not in others


def test_the_score_is_the_share_of_places_won() -> None:
    needle = Needle(0.5, (1, 2), (3, 4), ((5, 6), (7, 8)))
    logits = np.zeros((2, 10), np.float32)
    assert needle.score(logits) == 0.0  # a tie finds nothing
    logits[0, 3] = 1.0
    assert needle.score(logits) == 0.5
    logits[1, 4], logits[1, 9] = 1.0, 9.0  # what is no key doesn't count
    assert needle.score(logits) == 1.0
    logits[0, 7] = 2.0
    assert needle.score(logits) == 0.5


def test_guessing_scores_a_tenth() -> None:
    draw = np.random.default_rng(0)
    needle = make_needle(TOKENIZER, HAY, 300, 0, 0.5)
    scores = [needle.score(draw.standard_normal((5, 264)).astype(np.float32)) for _ in range(2000)]
    assert np.mean(scores) == pytest.approx(CHANCE, abs=0.01)


def test_the_real_vocabulary_has_a_token_for_each_digit() -> None:
    with open_model("smollm2-135m") as files:
        tokenizer = files.require_tokenizer()
        hay = tokenizer.encode("A stack of hay. " * 100)
        for number, depth in enumerate(DEPTHS):
            needle = make_needle(tokenizer, hay, 300, number, depth)
            assert tokenizer.decode(needle.key_ids) == KEYS[number]
            assert (len(needle.key_ids), len(needle.distractor_ids), len(needle.token_ids)) == (5, 9, 300)


@pytest.mark.parametrize(("num_tokens", "hay"), [(20, HAY), (1000, HAY[:100])])
def test_too_little_room_or_text_is_refused(num_tokens: int, hay: list[int]) -> None:
    with pytest.raises(RequestError, match="hide no pass key"):
        make_needle(TOKENIZER, hay, num_tokens, 0, 0.5)
