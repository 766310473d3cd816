"""SentencePiece vocabularies in GGUF files: ids as SentencePiece finds them, spaces and special tokens as llama.cpp."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from checkpoint.sentencepiece_twin import CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from checkpoint.varied_strings import varied_strings
from checkpoint.vocabularies import Scored, from_gguf_keys, pushed, train_scored
from hypothesis import given
from hypothesis import strategies as st

from kvist.checkpoint.tokenizer import Tokenizer
from kvist.errors import CheckpointError

TRAINED = train_scored()
TOKENIZER = from_gguf_keys(TRAINED.gguf_keys())
WITHOUT_PREFIX = from_gguf_keys(TRAINED.gguf_keys(add_space_prefix=False))
ID = {token: token_id for token_id, token in enumerate(TRAINED.tokens)}
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)


def plain_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False, parse_special=False)


def special_ids(text: str, tokenizer: Tokenizer = TOKENIZER) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def vocabulary(*typed: tuple[str, int, float]) -> Scored:
    """`<unk>`, `<s>`, `</s>` and the given tokens."""
    special = [("<unk>", UNKNOWN, 0.0), ("<s>", CONTROL, 0.0), ("</s>", CONTROL, 0.0)]
    tokens, types, scores = zip(*special, *typed, strict=True)
    return Scored(list(tokens), list(scores), list(types))


@pytest.mark.parametrize("has_prefix", [True, False])
def test_five_thousand_strings(has_prefix: bool) -> None:
    twin, tokenizer = TRAINED.twin(), TOKENIZER if has_prefix else WITHOUT_PREFIX
    typed = zip(TRAINED.tokens, TRAINED.types, strict=True)
    pieces = [token.replace("▁", " ") for token, kind in typed if kind == NORMAL]
    texts = [text for text in varied_strings(5500, seed=20, pieces=pieces) if "    " not in text and "▁" not in text]
    assert len(texts) > 5000
    for text in texts:
        ids = plain_ids(tokenizer, text)
        assert ids == twin.encode(text, has_prefix=has_prefix), text
        assert tokenizer.decode(ids) == text


@given(
    st.lists(st.text("ab", min_size=2, max_size=6), unique=True, max_size=12),
    st.integers(0, 2**32),
    st.text("ab", max_size=16),
)
def test_scores_in_any_order(names: list[str], seed: int, text: str) -> None:
    """Not only those of a training, in which the parts of a token score higher than the token."""
    scores = [float(rank) for rank in range(len(names))]
    random.Random(seed).shuffle(scores)
    made = vocabulary(*((n, NORMAL, s) for n, s in zip(names, scores, strict=True)), ("a", 1, -9.0), ("b", 1, -9.0))
    tokenizer = from_gguf_keys(made.gguf_keys(add_space_prefix=False))
    assert plain_ids(tokenizer, text) == made.twin().encode(text, has_prefix=False)


@given(TEXTS)
def test_no_text_is_lost(text: str) -> None:
    for tokenizer in (TOKENIZER, WITHOUT_PREFIX):
        ids = plain_ids(tokenizer, text)
        if "    " not in text:  # before what follows a user-defined token there is a space more
            assert tokenizer.decode(ids) == text.replace("▁", " ") == "".join(pushed(tokenizer, ids))
        assert not tokenizer.special_token_ids & set(ids)
    assert WITHOUT_PREFIX.decode(plain_ids(WITHOUT_PREFIX, text)) == text.replace("▁", " ")


def test_a_space_goes_before_every_part_that_special_tokens_leave() -> None:
    """As in llama.cpp; SentencePiece itself has it before the whole text only."""
    fox = plain_ids(TOKENIZER, "fox")
    assert TOKENIZER.decode(fox) == "fox"
    assert TOKENIZER.decode(fox, continues_text=True) == " fox"
    name = ID["<|im_end|>"]
    assert special_ids("fox<|im_end|>fox") == [*fox, name, *fox]
    assert special_ids("<|im_end|><|im_end|>") == [name, name]
    assert special_ids("fox<think>fox") == [*fox, ID["<think>"], *fox]
    bare = plain_ids(WITHOUT_PREFIX, "fox")
    assert bare != fox
    assert special_ids("fox<|im_end|>fox", WITHOUT_PREFIX) == [*bare, name, *bare]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [[1], []]),
        ({"add_bos_token": False}, [[], []]),
        ({"add_eos_token": True}, [[1], [2]]),
        ({"bos_token_id": 3, "eos_token_id": 1, "add_eos_token": True}, [[3], [1]]),
        ({"bos_token_id": 2**32 - 1}, [[], []]),
    ],
)
def test_bos_and_eos_are_those_of_llama_where_the_file_is_silent(
    changes: dict[str, object], expected: list[list[int]]
) -> None:
    tokenizer = from_gguf_keys(TRAINED.gguf_keys(**changes))
    for text in ("", "fox"):
        inner = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text) == [*expected[0], *inner, *expected[1]]
    assert tokenizer.eos_token_ids == {2, 3, changes.get("eos_token_id", 2)}  # 3 by its name
    assert tokenizer.template_tokens["eos_token"] == TRAINED.tokens[int(str(changes.get("eos_token_id", 2)))]


def test_no_text_spells_a_special_token_a_byte_or_an_unused_one() -> None:
    names = [("<s", NORMAL, 5.0), ("s>", NORMAL, 4.0), ("<0x41>", 6, 3.0), ("<0", NORMAL, 2.0), ("x41>", NORMAL, 1.0)]
    letters = [(letter, NORMAL, -1.0) for letter in "<s>/0x41[PAD]"]
    unused = [("[PAD", NORMAL, 9.0), ("[P", NORMAL, 10.0), ("AD", NORMAL, 10.0), ("[PAD]", UNUSED, 8.0)]
    made = vocabulary(*names, *dict.fromkeys(letters), *unused)
    tokenizer = from_gguf_keys(made.gguf_keys(add_space_prefix=False))
    for text in ("<s>", "</s>", "<0x41>", "[PAD]", "a<s><0x41>"):
        ids = plain_ids(tokenizer, text)
        assert not {1, 2, made.tokens.index("<0x41>"), made.tokens.index("[PAD]")} & set(ids), text
    assert tokenizer.decode([made.tokens.index("<0x41>"), made.tokens.index("[PAD]"), 1]) == "A<s>"


def test_a_character_without_token_and_bytes_is_unknown() -> None:
    made = train_scored(has_bytes=False)
    tokenizer = from_gguf_keys(made.gguf_keys())
    for text in ("fox 𓀀𓀀 fox", "\x01", "𓀀"):
        assert plain_ids(tokenizer, text) == made.twin().encode(text)
    assert plain_ids(tokenizer, "fox𓀀𓀀").count(0) == 1


def test_a_file_without_types_or_scores_still_knows_its_special_tokens() -> None:
    tokenizer = from_gguf_keys(TRAINED.gguf_keys(token_type=None, scores=None))
    assert tokenizer.special_token_ids == {0, 1, 2, 3}
    assert tokenizer.encode("fox</s>")[-1] == 2
    assert 2 not in plain_ids(tokenizer, "fox</s>")
    assert tokenizer.decode(plain_ids(tokenizer, "The quick 🚀")) == "The quick 🚀"


@pytest.mark.parametrize("keys", [{"general.name": "Phi-3-mini"}, {"general.architecture": "phi3"}])
def test_phi3s_special_tokens_take_the_white_space_behind_them(keys: dict[str, str]) -> None:
    typed = [("<|end|>", CONTROL, 0.0), ("<|user|>", CONTROL, 0.0), ("<|endoftext|>", CONTROL, 0.0)]
    letters = [(letter, NORMAL, -1.0) for letter in "▁ab\n"]
    made = vocabulary(*typed, *letters)
    tokenizer, other = from_gguf_keys({**made.gguf_keys(), **keys}), from_gguf_keys(made.gguf_keys())
    text = "<|user|>\n a<|end|>\n<|endoftext|>\nb"
    space, a, b, line = (made.tokens.index(letter) for letter in "▁ab\n")
    assert special_ids(text, tokenizer) == [4, space, a, 3, 5, space, line, b]
    assert special_ids(text, other) == [4, space, line, space, a, 3, space, line, 5, space, line, b]
    assert tokenizer.eos_token_ids == {2, 3, 5}


def test_an_end_of_turn_that_gemmas_files_call_user_defined_ends_it() -> None:
    made = vocabulary(("<end_of_turn>", USER_DEFINED, 0.0), ("<start_of_turn>", USER_DEFINED, 0.0), ("a", NORMAL, 0.0))
    tokenizer = from_gguf_keys(made.gguf_keys())
    assert tokenizer.eos_token_ids == {2, 3}
    assert 3 not in plain_ids(tokenizer, "a<end_of_turn>")


def damaged() -> Iterator[tuple[str, dict[str, object], str]]:
    num_tokens = len(TRAINED.tokens)
    numbers = f"scores isn't an array of {num_tokens} numbers, one for each token"
    yield "too few scores", {"scores": TRAINED.scores[:-1]}, numbers
    yield "scores as text", {"scores": "x"}, numbers
    yield "a score that is no number", {"scores": [float("nan"), *TRAINED.scores[1:]]}, numbers
    yield "scores as truth values", {"scores": np.zeros(num_tokens, dtype=bool)}, numbers
    yield "no tokens", {"tokens": None}, "tokens is missing or no array of strings"
    yield "a prefix that is a number", {"add_space_prefix": 1}, "add_space_prefix must be of type bool"
    yield "a name that is a number", {"bos_token_id": "x"}, "bos_token_id must be of type int"


@pytest.mark.parametrize(("changes", "message"), [case[1:] for case in damaged()], ids=[case[0] for case in damaged()])
def test_keys_that_cannot_be_used_are_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as refusal:
        from_gguf_keys(TRAINED.gguf_keys(**changes))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("tokens", [["a" * 20_000], ["ab" * n for n in range(500, 900)]], ids=["long", "many"])
def test_tokens_that_would_take_minutes_to_cut_are_refused_before(tokens: list[str]) -> None:
    made = vocabulary(*((token, NORMAL, 0.0) for token in tokens))
    with pytest.raises(CheckpointError, match="longer than any vocabulary's"):
        from_gguf_keys(made.gguf_keys())


TYPED = st.tuples(TEXTS.filter(lambda text: not text.startswith("<")), st.integers(-1, 7), st.floats(allow_nan=False))


@given(st.lists(TYPED, unique_by=lambda typed: typed[0], max_size=12), TEXTS)
def test_any_tokens_make_a_tokenizer(typed: list[tuple[str, int, float]], text: str) -> None:
    tokenizer = from_gguf_keys(vocabulary(*typed).gguf_keys())
    for parse_special in (True, False):
        ids = tokenizer.encode(text, parse_special=parse_special)
        assert all(0 <= token_id < tokenizer.vocab_size for token_id in ids)
        tokenizer.decode(ids)
