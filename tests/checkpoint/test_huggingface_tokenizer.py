"""Tokenizers of Hugging Face directories: what each file says is followed, and what can't be read is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkpoint.vocabularies import (
    CORPUS,
    SPECIAL,
    from_directory,
    train_byte_level,
    train_space_marked,
    write_directory,
)
from tokenizers import AddedToken, Regex, decoders, normalizers, processors
from tokenizers import Tokenizer as Backend

from kvist.checkpoint.huggingface_tokenizer import read_huggingface_tokenizer
from kvist.errors import CheckpointError, UnsupportedError


def copy_of(backend: Backend) -> Backend:
    return Backend.from_str(backend.to_str())


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_ids_are_the_librarys(tmp_path: Path, pre: str) -> None:
    backend = train_byte_level(pre)
    tokenizer = from_directory(write_directory(tmp_path, backend))
    for text in [*CORPUS, "".join(SPECIAL), " <|im_end|> x", ""]:
        assert tokenizer.encode(text) == backend.encode(text).ids
        assert tokenizer.decode(tokenizer.encode(text)) == text
        plain = tokenizer.encode(text, parse_special=False)
        assert not tokenizer.special_token_ids & set(plain)
        assert tokenizer.decode(plain) == text


def test_the_post_processor_is_kept(tmp_path: Path) -> None:
    backend = copy_of(train_byte_level("gpt-2"))
    backend.post_processor = processors.TemplateProcessing(single=["B", "$A", "E"], special_tokens=[("B", 1), ("E", 2)])
    tokenizer = from_directory(write_directory(tmp_path, backend))
    for parse_special in (True, False):
        inner = tokenizer.encode("fox", add_special_tokens=False, parse_special=parse_special)
        assert tokenizer.encode("fox", parse_special=parse_special) == [1, *inner, 2]


def test_the_normaliser_is_kept_for_plain_text_too(tmp_path: Path) -> None:
    backend = copy_of(train_byte_level("gpt-2"))
    backend.normalizer = normalizers.NFC()
    tokenizer = from_directory(write_directory(tmp_path, backend))
    for parse_special in (True, False):
        assert tokenizer.decode(tokenizer.encode("e\u0301", parse_special=parse_special)) == "\u00e9"


def test_padding_and_truncation_of_training_are_switched_off(tmp_path: Path) -> None:
    backend = copy_of(train_byte_level("gpt-2"))
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    tokenizer = from_directory(write_directory(tmp_path, backend))
    text = CORPUS[0]
    assert tokenizer.encode(text) == train_byte_level("gpt-2").encode(text).ids


def test_added_tokens_that_are_not_special_are_found_in_plain_text(tmp_path: Path) -> None:
    backend = copy_of(train_byte_level("gpt-2"))
    backend.add_tokens([AddedToken("[[tool]]", special=False, normalized=False)])
    tokenizer = from_directory(write_directory(tmp_path, backend))
    tool = backend.token_to_id("[[tool]]")
    assert tool == tokenizer.vocab_size - 1
    assert tokenizer.encode("[[tool]]", parse_special=False) == [tool]
    assert tool not in tokenizer.special_token_ids
    assert tokenizer.decode([tool], skip_special_tokens=True) == "[[tool]]"


@pytest.mark.parametrize("prepends_space", [True, False])
def test_space_marks_and_byte_fallback(tmp_path: Path, prepends_space: bool) -> None:
    backend = train_space_marked(prepends_space=prepends_space)
    tokenizer = from_directory(write_directory(tmp_path, backend), {"bos_token_id": 1, "eos_token_id": 2})
    for text in ["The quick fox", " The", "  two", "Grüße 🚀 漢字\n\tx", ""]:
        ids = tokenizer.encode(text)
        assert ids == backend.encode(text).ids
        assert ids[0] == tokenizer.bos_token_id == 1
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        assert tokenizer.decode(ids, skip_special_tokens=True) == backend.decode(ids)
        assert tokenizer.decode(ids) == backend.decode(ids, skip_special_tokens=False)
    assert tokenizer.eos_token_ids == {2}


def test_text_that_continues_keeps_its_first_space(tmp_path: Path) -> None:
    tokenizer = from_directory(write_directory(tmp_path, train_space_marked(prepends_space=True)))
    ids = tokenizer.encode("fox jumps", add_special_tokens=False)
    assert tokenizer.decode(ids) == "fox jumps"
    assert tokenizer.decode(ids, continues_text=True) == " fox jumps"


def test_a_metaspace_decoder_is_understood(tmp_path: Path) -> None:
    for scheme, expected in (("always", "fox x"), ("first", "fox x"), ("never", " fox x")):
        backend = train_space_marked(prepends_space=True)
        backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
        tokenizer = from_directory(write_directory(tmp_path, backend))
        ids = tokenizer.encode("fox x", add_special_tokens=False)
        assert tokenizer.decode(ids) == expected == backend.decode(ids)


@pytest.mark.parametrize(
    "decoder",
    [decoders.WordPiece(), decoders.CTC(), decoders.Sequence([decoders.ByteLevel(), decoders.BPEDecoder()]), None],
)
def test_a_decoder_of_another_kind_is_refused(tmp_path: Path, decoder: decoders.Decoder | None) -> None:
    backend = copy_of(train_byte_level("gpt-2"))
    backend.decoder = decoder
    with pytest.raises(UnsupportedError, match=r"decoder is of an unknown kind .*known: ByteLevel"):
        from_directory(write_directory(tmp_path, backend))


@pytest.mark.parametrize(
    ("settings", "config", "generation", "bos", "eos"),
    [
        ({}, {}, {}, None, {0, 2}),
        ({"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}, {}, {}, 1, {0, 2}),
        ({"bos_token": {"content": "<|im_start|>", "lstrip": False}}, {"bos_token_id": 0}, {}, 1, {0, 2}),
        ({"bos_token": None}, {"bos_token_id": 0}, {}, None, {0, 2}),
        ({}, {"bos_token_id": 0, "eos_token_id": 5}, {}, 0, {0, 2, 5}),
        ({}, {"eos_token_id": [5, 6]}, {"eos_token_id": [7, 8]}, None, {0, 2, 5, 6, 7, 8}),
        ({"bos_token": "nowhere"}, {"eos_token_id": -1}, {"eos_token_id": 10**9}, None, {0, 2}),
        ({"bos_token": 3}, {"bos_token_id": "x", "eos_token_id": None}, {"eos_token_id": [True, "y"]}, None, {0, 2}),
    ],
)
def test_special_tokens_come_from_all_files(
    tmp_path: Path,
    settings: dict[str, object],
    config: dict[str, object],
    generation: dict[str, object],
    bos: int | None,
    eos: set[int],
) -> None:
    write_directory(tmp_path, train_byte_level("gpt-2"), settings)
    tokenizer = from_directory(tmp_path, config, generation)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (bos, eos)


def test_chat_templates_in_every_place(tmp_path: Path) -> None:
    def templates(value: object = None) -> dict[str, str]:
        settings = {} if value is None else {"chat_template": value}
        return dict(from_directory(write_directory(tmp_path, train_byte_level("gpt-2"), settings)).chat_templates)

    assert templates() == {}
    assert templates("t") == {"default": "t"}
    named = [{"name": "default", "template": "t"}, {"name": "tool_use", "template": "u"}, {"name": 3}, 4]
    assert templates(named) == {"default": "t", "tool_use": "u"}
    (tmp_path / "chat_template.jinja").write_text("é\n", encoding="utf-8")
    assert templates(named) == {"default": "é\n"}
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("r")
    assert templates("t") == {"default": "é\n", "rag": "r"}


def test_the_template_for_tools_is_the_one_of_that_name(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "t"}, {"name": "tool_use", "template": "u"}]
    tokenizer = from_directory(write_directory(tmp_path, train_byte_level("gpt-2"), {"chat_template": named}))
    assert tokenizer.chat_template == "t"
    assert (tokenizer.template_for(has_tools=False), tokenizer.template_for(has_tools=True)) == ("t", "u")
    alone = from_directory(write_directory(tmp_path, train_byte_level("gpt-2"), {"chat_template": named[1:]}))
    assert alone.chat_template == "u"
    none = from_directory(write_directory(tmp_path, train_byte_level("gpt-2"), {}))
    assert none.chat_template is none.template_for(has_tools=True) is None


def test_a_directory_may_have_no_tokenizer(tmp_path: Path) -> None:
    assert read_huggingface_tokenizer(tmp_path, {}, {}) is None


@pytest.mark.parametrize("name", ["spiece.model", "vocab.json", "qwen.tiktoken"])
def test_another_file_alone_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\n\x0e")
    with pytest.raises(UnsupportedError, match=f"has its tokenizer as {name} only.*needed: tokenizer.json"):
        read_huggingface_tokenizer(tmp_path, {}, {})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"\xff\xfe",
        json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}).encode(),
        json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}).encode(),
        b"[" * 100_000,
    ],
)
def test_a_broken_tokenizer_json_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r'tokenizer\.json" is no tokenizer that can be read') as refusal:
        read_huggingface_tokenizer(tmp_path, {}, {})
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize("affix", ["continuing_subword_prefix", "end_of_word_suffix"])
def test_marks_of_parts_of_words_are_refused(tmp_path: Path, affix: str) -> None:
    state = json.loads(train_byte_level("gpt-2").to_str())
    for value, is_refused in ((None, False), ("", False), ("##", True)):
        state["model"][affix] = value
        (tmp_path / "tokenizer.json").write_text(json.dumps(state))
        if is_refused:
            with pytest.raises(UnsupportedError, match=f"has a {affix}, which isn't supported"):
                from_directory(tmp_path)
        else:
            assert from_directory(tmp_path).encode("fox")


def test_what_makes_the_library_panic_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """pyo3's PanicException is no Exception. (The library's own words go to stderr, past Python.)"""
    state = json.loads(train_space_marked(prepends_space=True).to_str())
    state["post_processor"]["special_tokens"] = {}
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(CheckpointError, match="is no tokenizer that can be read"):
        from_directory(tmp_path)
    del state["post_processor"], state["normalizer"]["normalizers"][1], state["model"]["vocab"]["<0xA0>"]
    state["model"]["unk_token"] = "gone"
    (tmp_path / "tokenizer.json").write_text(json.dumps({**state, "post_processor": None}))
    with pytest.raises(CheckpointError, match="the model's tokenizer fails on the text"):
        from_directory(tmp_path).encode("\u00a0")


def test_broken_files_beside_it_are_one_line(tmp_path: Path) -> None:
    write_directory(tmp_path, train_byte_level("gpt-2"))
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match=r'can\'t read ".*chat_template\.jinja"'):
        from_directory(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r'tokenizer_config\.json" is not valid JSON'):
        from_directory(tmp_path)


def test_a_regex_in_the_file_is_the_librarys_own(tmp_path: Path) -> None:
    """Normalisers may replace by pattern; the plain twin shares them."""
    backend = copy_of(train_byte_level("gpt-2"))
    backend.normalizer = normalizers.Replace(Regex("o+"), "0")
    tokenizer = from_directory(write_directory(tmp_path, backend))
    assert tokenizer.decode(tokenizer.encode("foox", parse_special=False)) == "f0x"
