"""SentencePiece unigram vocabularies, in directories and in GGUF files, with and without a normaliser."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoint.sentencepiece_bytes import AS_IT_IS, REPLACED, Field, character_map, model_bytes
from checkpoint.sentencepiece_twin import NORMAL, UnigramTwin
from checkpoint.varied_strings import varied_strings
from checkpoint.vocabularies import Scored, from_directory, from_gguf_keys, pushed, train_scored, unigram_scored
from hypothesis import given
from hypothesis import strategies as st

from kvist.checkpoint.character_map import CharacterMap
from kvist.checkpoint.tokenizer import Tokenizer
from kvist.errors import CheckpointError

UNIGRAM = (3, 1)
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)


def tokenizers(tmp_path: Path, made: Scored, *, is_plain: bool, has_prefix: bool = True) -> tuple[Tokenizer, Tokenizer]:
    """From a directory and from a GGUF file; unless ``is_plain`` characters are replaced and spaces trimmed."""
    replaced = b"" if is_plain else character_map(REPLACED)
    rules: list[Field] = [(3, int(has_prefix)), AS_IT_IS if is_plain else (2, replaced)]
    (tmp_path / "tokenizer.model").write_bytes(model_bytes(made, trainer=[UNIGRAM], normalizer=rules))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False}))
    changes = {} if is_plain else {"precompiled_charsmap": np.frombuffer(replaced, np.uint8)}
    keys = made.gguf_keys(
        model="t5",
        unknown_token_id=0,
        eos_token_id=2,
        add_eos_token=False,
        add_space_prefix=has_prefix,
        remove_extra_whitespaces=not is_plain,
        **changes,
    )
    return from_directory(tmp_path), from_gguf_keys(keys)


def twin_of(made: Scored, *, is_plain: bool) -> UnigramTwin:
    more = {} if is_plain else {"replaced": REPLACED, "trims_spaces": True}
    return UnigramTwin(made.tokens, made.scores, made.types, 0, **more)


@pytest.mark.parametrize("has_bytes", [True, False])
@pytest.mark.parametrize(("is_plain", "has_prefix"), [(True, True), (False, True), (False, False)])
def test_thousands_of_strings(tmp_path: Path, is_plain: bool, has_prefix: bool, has_bytes: bool) -> None:
    made = unigram_scored(has_bytes=has_bytes)
    twin = twin_of(made, is_plain=is_plain)
    pieces = [token.replace("▁", " ") for token, kind in zip(made.tokens, made.types, strict=True) if kind == NORMAL]
    texts = [text for text in varied_strings(2500, seed=60, pieces=pieces) if "    " not in text and "▁" not in text]
    for tokenizer in tokenizers(tmp_path, made, is_plain=is_plain, has_prefix=has_prefix):
        assert tokenizer.kind == "SentencePiece unigram"
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
            assert sorted(ids) == sorted(twin.encode(text, has_prefix=has_prefix)), text  # in any order as likely
            if has_bytes:
                assert tokenizer.decode(ids) == twin.normalised(text) == "".join(pushed(tokenizer, ids))


@given(TEXTS)
def test_a_text_spells_no_reserved_token(text: str) -> None:
    made = unigram_scored()
    tokenizer = from_gguf_keys(made.gguf_keys(model="t5", unknown_token_id=0))
    for name in ("<s>", "</s>", "<unk>", "<|im_end|>", "<0x41>"):
        ids = tokenizer.encode(f"{text}{name}{text}", add_special_tokens=False, parse_special=False)
        assert not tokenizer.special_token_ids & set(ids)
        assert made.tokens.index("<0x41>") not in ids
        if "    " not in text:
            assert tokenizer.decode(ids) == f"{text}{name}{text}".replace("▁", " ")


def test_ends_and_spaces_follow_the_file(tmp_path: Path) -> None:
    """As in llama.cpp: EOS and no BOS where nothing is said; spaces are trimmed in each part."""
    made = unigram_scored()
    keys = made.gguf_keys(model="t5", unknown_token_id=0, eos_token_id=2, add_space_prefix=True)
    assert from_gguf_keys(keys).encode("fox")[-1] == 2
    assert from_gguf_keys(keys | {"tokenizer.ggml.add_eos_token": False}).encode("fox")[-1] != 2
    for tokenizer in tokenizers(tmp_path, made, is_plain=False):
        fox = tokenizer.encode("fox")
        assert tokenizer.encode("  fox <|im_end|>  fox\n") == [*fox, made.tokens.index("<|im_end|>"), *fox]
        assert tokenizer.encode(" ") == tokenizer.encode("") == []
        assert tokenizer.encode("＜s＞")[0] != made.tokens.index("<s>")


def test_bpe_that_normalises(tmp_path: Path) -> None:
    made = train_scored()
    rules: list[Field] = [(2, character_map(REPLACED))]
    (tmp_path / "tokenizer.model").write_bytes(model_bytes(made, normalizer=rules))
    tokenizer, unigram = from_directory(tmp_path), twin_of(made, is_plain=False)
    assert tokenizer.kind == "SentencePiece BPE"
    for text in varied_strings(500, seed=61):
        if "    " not in text and "▁" not in text:
            ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
            assert ids == made.twin().encode(unigram.normalised(text)), text


@given(
    st.dictionaries(
        st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=3),
        st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=3),
        max_size=20,
    ),
    TEXTS,
)
def test_character_maps(entries: dict[str, str], text: str) -> None:
    made = unigram_scored()
    twin = UnigramTwin(made.tokens, made.scores, made.types, 0, replaced=entries)
    assert CharacterMap(character_map(entries)).normalise(text) == twin.normalised(text)


@given(st.data())
def test_damaged_maps_are_one_line_or_a_map(data: st.DataObject) -> None:
    sound = bytearray(character_map(REPLACED))
    for _ in range(data.draw(st.integers(1, 5))):
        sound[data.draw(st.integers(0, len(sound) - 1))] = data.draw(st.integers(0, 255))
    message = "character map"
    try:
        CharacterMap(bytes(sound[: data.draw(st.integers(0, len(sound)))])).normalise("".join(REPLACED))
    except CheckpointError as error:
        message = str(error)
    assert "character map" in message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": [float("inf")] * 2, "tokens": ["<unk>", "a"], "token_type": [2, 1]}, "scores aren't finite"),
        ({"precompiled_charsmap": np.zeros(3, np.uint8)}, "character map of 3 bytes has no trie of 0 bytes"),
        ({"precompiled_charsmap": np.full(9, 255, np.uint8)}, "no trie of 4294967295 bytes"),
        ({"precompiled_charsmap": "text"}, "isn't an array of whole numbers"),
        ({"unknown_token_id": 2**32 - 1}, "no unknown token"),
    ],
)
def test_files_that_cannot_be_used_are_one_line(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as refusal:
        from_gguf_keys(unigram_scored().gguf_keys(**{"model": "t5", "unknown_token_id": 0, **changes}))
    assert "\n" not in str(refusal.value)
