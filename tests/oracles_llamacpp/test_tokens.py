"""llama.cpp, asked afresh, gives the ids that are recorded, and kvist's on thousands of other strings."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

import pytest
from checkpoint.sentencepiece_bytes import REPLACED, character_map
from checkpoint.varied_strings import varied_strings
from checkpoint.vocabularies import Scored, from_gguf_keys, train_scored, unigram_scored
from gguf import GGUFWriter
from oracles_llamacpp.record_tokens import (
    OUTPUT,
    PRETOKENIZERS,
    TEXTS,
    load,
    record_smollm2,
    record_uncut,
    smollm2_path,
    token_ids,
    write_vocabulary,
)

from kvist.checkpoint.gguf import GgufFile
from kvist.checkpoint.tokenizer import Tokenizer, load_tokenizer

RECORDED = json.loads(OUTPUT.read_text())


def test_the_recorded_texts_are_those_of_the_script() -> None:
    assert RECORDED["texts"] == TEXTS


@pytest.mark.parametrize("key", ["model", "pieces_sha256", "with_special", "plain", "decoded"])
def test_smollm2(key: str) -> None:
    assert record_smollm2()[key] == RECORDED["smollm2"][key]


def test_pretokenizers() -> None:
    """With the recorded vocabulary, not one trained anew: another version of the library may train otherwise."""
    fresh = record_uncut(RECORDED["uncut"]["tokens"], RECORDED["uncut"]["merges"])
    for pre, ids in fresh["by_pre"].items():
        assert ids == RECORDED["uncut"]["by_pre"][pre], pre


NUM_STRINGS = 5000
NUM_DIFFERENT = {
    "tekken": 600,
    "gpt-4o": 600,
    "deepseek-llm": 20,
    "deepseek-coder": 20,
    "deepseek-v3": 20,
    "superbpe": 20,
}
"""Names for which kvist follows the models' tokenizer.json and not llama.cpp; docs/tokenizers.md says in what."""


def differing(tokenizer: Tokenizer, path: Path, texts: list[str], pre: str | None = None) -> list[str]:
    """The texts whose ids aren't the same, with special tokens' names parsed or not."""
    llama = load(path, pre)
    wrong = []
    for parse_special in (True, False):
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=False, parse_special=parse_special)
            if ids != token_ids(llama, text, parse_special=parse_special):
                wrong.append(text)
    return wrong


@pytest.mark.parametrize("pre", PRETOKENIZERS)
def test_five_thousand_strings(tmp_path: Path, pre: str) -> None:
    tokens, merges = RECORDED["uncut"]["tokens"], RECORDED["uncut"]["merges"]
    path = tmp_path / "uncut.gguf"
    write_vocabulary(path, tokens, merges)
    keys = {"model": "gpt2", "pre": pre, "tokens": tokens, "merges": merges, "add_bos_token": False}
    tokenizer = from_gguf_keys({f"tokenizer.ggml.{name}": value for name, value in keys.items()})
    wrong = differing(tokenizer, path, varied_strings(NUM_STRINGS, seed=50, pieces=["The", " quick", " fox"]), pre)
    assert len(wrong) <= 2 * NUM_DIFFERENT.get(pre, 0), wrong[:5]
    if pre in ("tekken", "gpt-4o"):
        assert all(any(unicodedata.category(c).startswith("M") for c in text) for text in wrong)


def test_five_thousand_strings_with_smollm2s_vocabulary() -> None:
    tokenizer = load_tokenizer(GgufFile(smollm2_path()))
    assert tokenizer is not None
    pieces = [text for i in range(0, 49152, 7) if "\ufffd" not in (text := tokenizer.token_text(i))]
    assert not differing(tokenizer, smollm2_path(), varied_strings(NUM_STRINGS, seed=51, pieces=pieces))


def write_scored(
    path: Path, made: Scored, *, has_prefix: bool, name: str = "model", kind: str = "llama", trims: bool = False
) -> None:
    writer = GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_tokenizer_model(kind)
    if kind == "t5":
        writer.add_unk_token_id(0)
        writer.add_eos_token_id(2)
        writer.add_remove_extra_whitespaces(trims)
        if trims:
            writer.add_precompiled_charsmap(character_map(REPLACED))
    writer.add_token_list(made.tokens)
    writer.add_token_scores(made.scores)
    writer.add_token_types(made.types)
    writer.add_add_space_prefix(has_prefix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


@pytest.mark.parametrize("has_prefix", [True, False])
@pytest.mark.parametrize("name", ["model", "Phi-3-mini"])
def test_sentencepiece(tmp_path: Path, has_prefix: bool, name: str) -> None:
    """Phi-3's special tokens take the white space behind them; of its user-defined ones, of which it has none, kvist
    doesn't say so."""
    made = train_scored()
    more = ["<|user|>", "<|end|>", "<|endoftext|>"]
    made = Scored([*made.tokens, *more], [*made.scores, 0.0, 0.0, 0.0], [*made.types, 3, 3, 3])
    path = tmp_path / "scored.gguf"
    write_scored(path, made, has_prefix=has_prefix, name=name)
    tokenizer = load_tokenizer(GgufFile(path))
    assert tokenizer is not None
    pieces = [*(token.replace("▁", " ") for token in made.tokens), *[*more, "\n", "  "] * 20]
    texts = varied_strings(NUM_STRINGS, seed=52, pieces=pieces)
    if name != "model":
        texts = [text for text in texts if "    " not in text and "<think>" not in text]
    assert not differing(tokenizer, path, texts)


@pytest.mark.parametrize(("trims", "has_prefix"), [(False, True), (False, False), (True, True)])
def test_unigram(tmp_path: Path, trims: bool, has_prefix: bool) -> None:
    """Of segmentations that are as likely either may take another one.

    Not compared is where llama.cpp parts from sentencepiece, and kvist doesn't: bytes for what no token covers, unused
    tokens, a part of spaces alone, the prefix where spaces are trimmed but none is put before; and user-defined tokens.
    """
    made = unigram_scored(has_bytes=False)
    path = tmp_path / "unigram.gguf"
    write_scored(path, made, has_prefix=has_prefix, kind="t5", trims=trims)
    tokenizer = load_tokenizer(GgufFile(path))
    assert tokenizer is not None
    assert tokenizer.kind == "SentencePiece unigram"
    pieces = [*(token.replace("▁", " ") for token in made.tokens), *["<|im_end|>", "\n", "  "] * 20]
    texts = varied_strings(NUM_STRINGS + 1000, seed=53, pieces=pieces)
    others = ("    ", "<think>", "[PAD")
    texts = [text for text in texts if not any(name in text for name in others)]
    texts = [text for text in texts if all(part.strip(" ") for part in re.split("<.*?>", text) if part)]
    assert len(texts) >= NUM_STRINGS
    wrong = differing(tokenizer, path, texts)
    llama = load(path)
    for text in wrong:
        ids = [
            sorted(tokenizer.encode(text, add_special_tokens=False, parse_special=is_parsed))
            for is_parsed in (True, False)
        ]
        assert ids == [sorted(token_ids(llama, text, parse_special=is_parsed)) for is_parsed in (True, False)], text
    assert len(wrong) < NUM_STRINGS / 50
