"""Token ids on a mixed corpus are those that llama.cpp gives (recorded: tests/oracles_llamacpp/record_tokens.py)."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from kvist.checkpoint.catalog import open_checkpoint
from kvist.checkpoint.gguf_tokenizer import read_gguf_tokenizer
from kvist.checkpoint.pretokenizers import PRETOKENIZERS
from kvist.checkpoint.tokenizer import Tokenizer, load_tokenizer

RECORDED: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "llamacpp_tokens.json").read_text())
TEXTS: list[str] = RECORDED["texts"]
SMOLLM2: dict[str, Any] = RECORDED["smollm2"]
UNCUT: dict[str, Any] = RECORDED["uncut"]
WITHOUT_MARKS = ("tekken", "gpt-4o")
"""For these llama.cpp's pattern leaves combining marks out of words; kvist follows the models' tokenizer.json."""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    tokenizer = load_tokenizer(open_checkpoint("smollm2-135m"))
    assert tokenizer is not None
    return tokenizer


def uncut_tokenizer(pre: str) -> Tokenizer:
    """The vocabulary trained without cuts, under one pre-tokenizer."""
    keys = {"model": "gpt2", "pre": pre, "tokens": UNCUT["tokens"], "merges": UNCUT["merges"], "add_bos_token": False}
    parts = read_gguf_tokenizer({f"tokenizer.ggml.{name}": value for name, value in keys.items()}, Path("uncut.gguf"))
    assert parts is not None
    return Tokenizer(parts)


def has_marks(text: str) -> bool:
    return any(unicodedata.category(character).startswith("M") for character in text)


def test_special_tokens_in_a_text_are_parsed(tokenizer: Tokenizer) -> None:
    assert [tokenizer.encode(text) for text in TEXTS] == SMOLLM2["with_special"]
    assert any(tokenizer.special_token_ids & set(ids) for ids in SMOLLM2["with_special"])


def test_or_they_are_plain_text(tokenizer: Tokenizer) -> None:
    ids = [tokenizer.encode(text, parse_special=False) for text in TEXTS]
    assert ids == SMOLLM2["plain"]
    assert not tokenizer.special_token_ids & {token_id for row in ids for token_id in row}


def test_ids_decode_to_the_same_text(tokenizer: Tokenizer) -> None:
    assert [tokenizer.decode(ids) for ids in SMOLLM2["with_special"]] == SMOLLM2["decoded"]


def test_every_token_stands_for_the_same_bytes(tokenizer: Tokenizer) -> None:
    digest = hashlib.sha256()
    for token_id in range(tokenizer.vocab_size):
        piece = tokenizer.token_bytes(token_id)
        digest.update(len(piece).to_bytes(4, "little") + piece)
    assert digest.hexdigest() == SMOLLM2["pieces_sha256"]


def test_only_characters_that_the_vocabulary_lacks_are_lost(tokenizer: Tokenizer) -> None:
    for text in TEXTS:
        lost = {character for character in text if not tokenizer.encode(character)}
        assert lost <= set("\x04\x06\x13\x14\x16\x1d")
        assert tokenizer.decode(tokenizer.encode(text)) == "".join(c for c in text if c not in lost)


@pytest.mark.parametrize("pre", UNCUT["by_pre"])
def test_each_pretokenizer_cuts_as_recorded(pre: str) -> None:
    tokenizer = uncut_tokenizer(pre)
    compared = 0
    for text, expected in zip(TEXTS, UNCUT["by_pre"][pre], strict=True):
        if pre in WITHOUT_MARKS and has_marks(text):
            continue
        ids = tokenizer.encode(text, parse_special=False)
        assert ids == expected, text
        assert tokenizer.decode(ids) == text
        compared += 1
    assert compared >= len(TEXTS) - 4


def test_every_set_of_rules_is_recorded() -> None:
    assert {PRETOKENIZERS[pre] for pre in UNCUT["by_pre"]} == set(PRETOKENIZERS.values())


def test_the_recording_tells_the_rules_apart() -> None:
    """Rules that give the same ids throughout are those that differ in possessive quantifiers or in BOS alone."""
    alike: dict[str, list[str]] = {}
    for pre, ids in UNCUT["by_pre"].items():
        alike.setdefault(json.dumps(ids), []).append(pre)
    groups = [pres for pres in alike.values() if len(pres) > 1]
    assert groups == [["llama-bpe", "glm4", "minicpm5"], ["qwen2", "bailingmoe"]]
