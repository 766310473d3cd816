"""Hugging Face directories with a SentencePiece model and no tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkpoint.sentencepiece_bytes import AS_IT_IS, BPE, added, message, model_bytes
from checkpoint.varied_strings import varied_strings
from checkpoint.vocabularies import from_directory, from_gguf_keys, train_scored
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvist.checkpoint.huggingface_tokenizer import read_huggingface_tokenizer
from kvist.checkpoint.tokenizer import Tokenizer
from kvist.errors import CheckpointError, UnsupportedError

TRAINED = train_scored()
NUM_PIECES = len(TRAINED.tokens)
SOUND = model_bytes(TRAINED)


def tokenizer_of(directory: Path, config: dict[str, object], data: bytes = SOUND) -> Tokenizer:
    (directory / "tokenizer.model").write_bytes(data)
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return from_directory(directory)


@pytest.mark.parametrize("has_prefix", [True, False])
def test_ids_are_those_of_the_gguf_file_of_the_same_model(tmp_path: Path, has_prefix: bool) -> None:
    data = model_bytes(TRAINED, normalizer=[AS_IT_IS, (3, int(has_prefix))])
    ours = tokenizer_of(tmp_path, {"bos_token": "<s>", "eos_token": "</s>"}, data)
    theirs = from_gguf_keys(TRAINED.gguf_keys(add_space_prefix=has_prefix))
    for text in varied_strings(500, seed=21, pieces=["<s>", "</s>", "<|im_end|>", "<think>", "    ", "fox", " "]):
        for parse_special in (True, False):
            ids = theirs.encode(text, parse_special=parse_special)
            assert ours.encode(text, parse_special=parse_special) == ids, text
            assert ours.decode(ids) == theirs.decode(ids)
    for name in ("vocab_size", "bos_token_id", "eos_token_ids", "special_token_ids"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.decode([NUM_PIECES - 1]) == ""  # unused


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, "<s>▁fox<|im_end|>▁fox"),
        ({"legacy": True}, "<s>▁fox<|im_end|>▁fox"),
        ({"legacy": False}, "<s>▁fox<|im_end|>fox"),
        ({"add_prefix_space": False}, "<s>fox<|im_end|>fox"),
        ({"add_bos_token": False}, "▁fox<|im_end|>▁fox"),
        ({"add_eos_token": True}, "<s>▁fox<|im_end|>▁fox</s>"),
    ],
)
def test_spaces_and_ends_follow_the_settings(tmp_path: Path, config: dict[str, object], expected: str) -> None:
    ids = tokenizer_of(tmp_path, config).encode("fox<|im_end|>fox")
    assert "".join(TRAINED.tokens[token_id] for token_id in ids) == expected


def test_tokens_that_were_added_later(tmp_path: Path) -> None:
    tokens = {3: ("<|eot_id|>", True), NUM_PIECES + 2: ("<tool>", False), NUM_PIECES: ("<|end|>", True)}
    tokenizer = tokenizer_of(tmp_path, {"added_tokens_decoder": added(tokens)})
    assert tokenizer.vocab_size == NUM_PIECES + 3
    assert tokenizer.encode("<|eot_id|><|end|><tool>") == [1, 3, NUM_PIECES, NUM_PIECES + 2]
    assert tokenizer.encode("<tool>", parse_special=False) == [1, NUM_PIECES + 2]
    assert tokenizer.eos_token_ids == {2, 3, NUM_PIECES}
    assert len(tokenizer.encode("<|im_end|>")) > 2  # its place was taken
    assert tokenizer.decode([NUM_PIECES + 1]) == ""  # a gap


def test_tokens_of_the_older_file(tmp_path: Path) -> None:
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<tool>": NUM_PIECES, "<mark>": NUM_PIECES + 1}))
    (tmp_path / "special_tokens_map.json").write_text(
        json.dumps({"eos_token": {"content": "</s>"}, "additional_special_tokens": ["<mark>"]})
    )
    tokenizer = tokenizer_of(tmp_path, {})
    assert tokenizer.special_tokens["<mark>"] == NUM_PIECES + 1
    assert tokenizer.encode("<tool>", parse_special=False) == [1, NUM_PIECES]
    assert NUM_PIECES + 1 not in tokenizer.encode("<mark>", parse_special=False)


def test_a_token_that_strips_white_space(tmp_path: Path) -> None:
    decoder = {"3": {"content": "<|end|>", "special": True, "rstrip": True, "lstrip": False}}
    tokenizer = tokenizer_of(tmp_path, {"added_tokens_decoder": decoder, "legacy": False})
    assert tokenizer.encode("<|end|>\n\nfox") == [1, 3, *tokenizer.encode("<|end|>fox")[2:]]


def test_tokenizer_json_goes_before_it(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"no model")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        from_directory(tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (model_bytes(TRAINED, trainer=[(3, 3)]), "of another type than BPE and unigram"),
        (model_bytes(TRAINED, trainer=[(3, 4)]), "of another type than BPE and unigram"),
        (model_bytes(TRAINED, normalizer=[AS_IT_IS, (5, 0)]), "that has spaces in another place"),
        (model_bytes(TRAINED, trainer=[BPE, (24, 1)]), "that has spaces in another place"),
    ],
)
def test_models_of_other_kinds_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(UnsupportedError, match=f"is a SentencePiece model {message}.*needed: tokenizer.json"):
        tokenizer_of(tmp_path, {}, data)


def piece(*fields: tuple[int, int | float | bytes | str]) -> bytes:
    return message([(1, message(fields)), (2, message([BPE])), (3, message([AS_IT_IS]))])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it has no pieces"),
        (b"IQ== 0\nIg== 1\n", "it has no pieces"),  # what other programs call tokenizer.model
        (b"\xff" * 20, "a number doesn't end"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "bytes behind its end"),
        (b"\x0b\x00", "unknown kind 3"),
        (message([(1, 5)]), "of the wrong kind"),
        (message([(1, message([(1, 5)]))]), "of the wrong kind"),
        (piece((1, b"\xff")), "isn't UTF-8"),
        (piece((1, "a"), (2, float("nan"))), "score is no number"),
        (piece((1, "a"), (2, 7)), "of the wrong kind"),
        (model_bytes(TRAINED, normalizer=[AS_IT_IS, (2, b"map")]), "its character map of 3 bytes has no trie"),
        (model_bytes(TRAINED, normalizer=[AS_IT_IS, (2, 5)]), "of the wrong kind"),
        (piece((1, "a" * 20_000)), "longer than any vocabulary's"),
        (message([(1, message([(1, "a")]))] * 2), "1 of its 2 pieces occur twice"),
        (message([(1, b"")] * 3), "2 of its 3 pieces occur twice"),
    ],
)
def test_a_broken_model_is_one_line(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as refusal:
        tokenizer_of(tmp_path, {}, data)
    assert "\n" not in str(refusal.value)
    assert 'tokenizer.model"' in str(refusal.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"added_tokens_decoder": added({2**40: ("<x>", True)})}, "an added token with the id"),
        ({"added_tokens_decoder": added({5: ("<s>", True)})}, "1 of its .* tokens occur twice"),
        ({"added_tokens_decoder": added({NUM_PIECES + 2**20: ("<x>", True)})}, "an added token with the id"),
    ],
)
def test_added_tokens_that_cannot_be_used_are_one_line(tmp_path: Path, config: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        tokenizer_of(tmp_path, config)


def test_odd_settings_are_passed_over(tmp_path: Path) -> None:
    decoder = {"x": {"content": "a"}, "3": "text", "4": None}
    tokenizer = tokenizer_of(tmp_path, {"added_tokens_decoder": decoder, "add_bos_token": 3, "legacy": "no"})
    assert tokenizer.encode("fox")[0] == 1


def test_a_model_of_a_terabyte_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CheckpointError, match="at most 16777216 are allowed"):
        read_huggingface_tokenizer(tmp_path, {}, {})


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_bytes_are_one_line_or_a_vocabulary(tmp_path: Path, data: st.DataObject) -> None:
    small = model_bytes(train_scored(num_merged=1, has_bytes=False))
    cut = data.draw(st.integers(0, len(small)))
    changed = bytearray(small[:cut] if data.draw(st.booleans()) else small)
    for _ in range(data.draw(st.integers(0, 3))):
        if changed:
            changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "tokenizer.model").write_bytes(bytes(changed))
    message = ""
    try:
        tokenizer = from_directory(tmp_path)
        tokenizer.decode(tokenizer.encode("fox 🚀"))
    except CheckpointError as error:
        message = str(error)
    assert message.isprintable()
    assert len(message) < 500
