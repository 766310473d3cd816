"""Tokenizers from a GGUF file's keys: the same ids as the tokenizer.json they were made of, and every refusal."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from checkpoint.gguf_bytes import BOOL, I32, STRING, U32, array, gguf_bytes, scalar, string, text
from checkpoint.varied_strings import varied_strings
from checkpoint.vocabularies import (
    CORPUS,
    SPECIAL,
    USER_DEFINED,
    byte_level,
    from_directory,
    from_gguf_keys,
    gguf_keys,
    taking_names_as_text,
    train_byte_level,
    write_directory,
)
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models

from kvist.checkpoint.catalog import open_checkpoint
from kvist.checkpoint.gguf import GgufFile
from kvist.checkpoint.gguf_tokenizer import read_gguf_tokenizer
from kvist.checkpoint.pretokenizers import PRETOKENIZERS, pretokenizer_named
from kvist.checkpoint.tokenizer import Tokenizer, load_tokenizer
from kvist.errors import CheckpointError, UnsupportedError

PRES = ("gpt-2", "smollm", "llama-bpe", "dbrx", "qwen2", "falcon")
PIECES = (*SPECIAL, *USER_DEFINED, "<|im_", " 's", "\r\n", "  ", "\t", "12345", "e\u0301", "漢字", "don't", "\u00a0")
TEXTS = st.lists(
    st.one_of(st.sampled_from(PIECES), st.sampled_from(CORPUS), st.text(st.characters(exclude_categories=("Cs",)))),
    max_size=6,
).map("".join)


@pytest.mark.parametrize("pre", PRES)
@given(text=TEXTS, parse_special=st.booleans())
def test_ids_are_those_of_the_same_tokenizer_json(pre: str, text: str, parse_special: bool) -> None:
    tokenizer = from_gguf_keys(gguf_keys(train_byte_level(pre), pre))
    backend = train_byte_level(pre) if parse_special else taking_names_as_text(pre)
    ids = tokenizer.encode(text, parse_special=parse_special)
    assert ids == backend.encode(text).ids
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("pre", PRES)
def test_five_thousand_strings(pre: str) -> None:
    tokenizer = from_gguf_keys(gguf_keys(train_byte_level(pre), pre))
    assert_same(tokenizer, train_byte_level(pre), taking_names_as_text(pre))


def test_five_thousand_strings_with_smollm2s_own_vocabulary() -> None:
    """Against the parts of its tokenizer.json, put together by hand."""
    checkpoint = open_checkpoint("smollm2-135m")
    tokenizer = load_tokenizer(checkpoint)
    assert tokenizer is not None
    names = list(checkpoint.metadata["tokenizer.ggml.tokens"])
    merges = [tuple(merge.split(" ")) for merge in checkpoint.metadata["tokenizer.ggml.merges"]]
    backends = [Backend(models.BPE({name: i for i, name in enumerate(names)}, merges)) for _ in range(2)]
    for backend in backends:
        backend.pre_tokenizer = byte_level("smollm")
        backend.add_special_tokens(names[:17])
    backends[1].encode_special_tokens = True
    assert_same(tokenizer, *backends, pieces=[tokenizer.token_text(i) for i in range(0, 49152, 7)])


def assert_same(tokenizer: Tokenizer, special: Backend, plain: Backend, pieces: Sequence[str] = PIECES) -> None:
    for given_text in varied_strings(5000, seed=41, pieces=[piece for piece in pieces if "\ufffd" not in piece]):
        ids = tokenizer.encode(given_text, parse_special=False)
        assert ids == plain.encode(given_text).ids, given_text
        assert tokenizer.encode(given_text) == special.encode(given_text).ids, given_text


def test_a_whole_file_reads_as_the_directory_does(tmp_path: Path) -> None:
    backend = train_byte_level("qwen2")
    keys = gguf_keys(backend, "qwen2")
    tokens, merges, types = (keys[f"tokenizer.ggml.{name}"] for name in ("tokens", "merges", "token_type"))
    file = tmp_path / "tiny.gguf"
    file.write_bytes(
        gguf_bytes(
            [
                ("tokenizer.ggml.model", text("gpt2")),
                ("tokenizer.ggml.pre", text("qwen2")),
                ("tokenizer.ggml.tokens", array(STRING, [string(token) for token in tokens])),
                ("tokenizer.ggml.token_type", array(I32, [struct.pack("<i", kind) for kind in types])),
                ("tokenizer.ggml.merges", array(STRING, [string(merge) for merge in merges])),
                ("tokenizer.ggml.eos_token_id", scalar(U32, 2)),
                ("tokenizer.ggml.add_bos_token", scalar(BOOL, 0)),
                ("tokenizer.chat_template", text("{{ messages[0].content }}")),
            ]
        )
    )
    settings = {"eos_token": "<|im_end|>", "chat_template": "{{ messages[0].content }}", "bos_token": None}
    ours = load_tokenizer(GgufFile(file))
    theirs = from_directory(write_directory(tmp_path, backend, settings))
    assert ours is not None
    for corpus in CORPUS:
        assert ours.encode(corpus) == theirs.encode(corpus)
    for name in (
        "vocab_size",
        "bos_token_id",
        "eos_token_ids",
        "special_token_ids",
        "chat_template",
        "template_tokens",
    ):
        assert getattr(ours, name) == getattr(theirs, name), name


def test_smollm2_has_its_facts() -> None:
    tokenizer = load_tokenizer(open_checkpoint("smollm2-135m"))
    assert tokenizer is not None
    assert tokenizer.vocab_size == 49152
    assert tokenizer.eos_token_ids == {0, 2}
    assert tokenizer.special_token_ids == set(range(17))
    assert tokenizer.template_tokens["bos_token"] == "<|im_start|>"
    assert tokenizer.chat_template is not None
    assert tokenizer.chat_template.startswith("{% for message in messages %}")


@pytest.mark.parametrize(
    ("pre", "add_bos", "add_eos", "expected"),
    [
        ("smollm", None, None, [[], []]),
        ("smollm", True, None, [[1], []]),
        ("smollm", True, True, [[1], [2]]),
        ("llama-bpe", None, None, [[1], []]),
        ("llama-bpe", False, None, [[], []]),
    ],
)
def test_bos_and_eos_follow_the_file(
    pre: str, add_bos: bool | None, add_eos: bool | None, expected: list[list[int]]
) -> None:
    tokenizer = from_gguf_keys(gguf_keys(train_byte_level(pre), pre, add_bos_token=add_bos, add_eos_token=add_eos))
    inner = tokenizer.encode("fox", add_special_tokens=False)
    for parse_special in (True, False):
        ids = tokenizer.encode("fox", parse_special=parse_special)
        assert ids == [*expected[0], *inner, *expected[1]]


def test_a_file_without_bos_adds_none() -> None:
    tokenizer = from_gguf_keys(gguf_keys(train_byte_level("smollm"), "smollm", add_bos_token=True, bos_token_id=None))
    assert tokenizer.bos_token_id is None
    assert tokenizer.encode("") == []


def test_ids_out_of_range_mean_no_token() -> None:
    keys = gguf_keys(train_byte_level("smollm"), "smollm", bos_token_id=0xFFFFFFFF, eos_token_id=-1)
    tokenizer = from_gguf_keys(keys)
    assert tokenizer.bos_token_id is None
    assert tokenizer.eos_token_ids == {0, 2}


def renamed(**names: str) -> dict[str, object]:
    """Keys whose tokens carry other names: `a` for id 0, `b` for 1, `c` for 2."""
    keys = gguf_keys(train_byte_level("smollm"), "smollm", eos_token_id=None, bos_token_id=None)
    tokens = list(keys["tokenizer.ggml.tokens"])
    for letter, name in names.items():
        tokens["abc".index(letter)] = name
    return {**keys, "tokenizer.ggml.tokens": tokens}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (renamed(a="<|eot_id|>", b="<|eom_id|>", c="<s>"), {0, 1}),
        (renamed(a="<end_of_turn>", b="</s>", c="<unk>"), {0, 1}),
        (renamed(a="<|end|>", b="<|user|>", c="<|endoftext|>"), {0, 2}),
        (renamed(a="<|end|>", b="<|return|>", c="<|call|>"), {1, 2}),
        (
            {**renamed(a="xa", b="xb", c="xc"), "tokenizer.ggml.eot_token_id": 1, "tokenizer.ggml.eom_token_id": 2},
            {1, 2},
        ),
        ({**renamed(a="xa", b="xb", c="<|im_end|>"), "tokenizer.ggml.eos_token_id": 0}, {0, 2}),
    ],
)
def test_a_reply_ends_at_what_the_file_or_the_name_says(keys: dict[str, object], expected: set[int]) -> None:
    assert from_gguf_keys(keys).eos_token_ids == expected


def test_an_end_of_turn_mistyped_as_ordinary_is_special_all_the_same() -> None:
    keys = gguf_keys(train_byte_level("smollm"), "smollm")
    keys["tokenizer.ggml.token_type"] = [1] * len(keys["tokenizer.ggml.tokens"])
    tokenizer = from_gguf_keys(keys)
    assert tokenizer.special_token_ids == {0, 2}
    assert tokenizer.encode("<|im_end|>") == [2]
    assert len(tokenizer.encode("<|im_end|>", parse_special=False)) > 1


def test_unused_ids_stand_for_nothing() -> None:
    keys = gguf_keys(train_byte_level("smollm"), "smollm")
    keys["tokenizer.ggml.tokens"] = [*keys["tokenizer.ggml.tokens"], "[PAD0]", "[PAD1]"]
    keys["tokenizer.ggml.token_type"] = np.array([*keys["tokenizer.ggml.token_type"], 5, 5], np.int32)
    tokenizer = from_gguf_keys(keys)
    last = tokenizer.vocab_size - 1
    assert tokenizer.decode([last, *tokenizer.encode("fox"), last - 1, last + 1, last + 1000]) == "fox"


def test_chat_templates_have_names() -> None:
    keys = gguf_keys(train_byte_level("smollm"), "smollm")
    keys["tokenizer.chat_template"] = "plain"
    assert from_gguf_keys(keys).chat_template == "plain"
    keys |= {"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": "tools"}
    tokenizer = from_gguf_keys(keys)
    assert tokenizer.chat_templates == {"default": "plain", "tool_use": "tools"}
    assert tokenizer.chat_template == "plain"


@pytest.mark.parametrize("kind", [None, "none"])
def test_a_file_may_have_no_tokenizer(kind: str | None) -> None:
    keys = {} if kind is None else {"tokenizer.ggml.model": kind}
    assert read_gguf_tokenizer(keys, Path("m.gguf")) is None


@pytest.mark.parametrize("kind", ["bert", "plamo2", "rwkv", "gemma4"])
def test_other_kinds_are_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedError, match=rf'"m.gguf" has a tokenizer of type "{kind}"; supported: gpt2'):
        read_gguf_tokenizer({"tokenizer.ggml.model": kind}, Path("m.gguf"))


def test_an_unknown_pretokenizer_answers_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedError, match=r"unknown pre-tokenizer 'qwen9'.*known: .*qwen2.*smollm") as refusal:
        from_gguf_keys(gguf_keys(train_byte_level("smollm"), "qwen9"))
    assert "\n" not in str(refusal.value)
    assert all(pretokenizer_named(name).patterns for name in PRETOKENIZERS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": None}, "tokenizer.ggml.tokens is missing or no array of strings"),
        ({"tokens": 7}, "tokenizer.ggml.tokens is missing or no array of strings"),
        ({"tokens": np.arange(3)}, "tokenizer.ggml.tokens is missing or no array of strings"),
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, "1 of its 2 tokens occur twice"),
        ({"merges": None}, "tokenizer.ggml.merges is missing or no array of strings"),
        ({"merges": ["a nowhere"]}, "tokens and merges don't fit together"),
        ({"merges": ["nospace"]}, "tokens and merges don't fit together"),
        ({"token_type": [1, 2]}, "token_type isn't an array of"),
        ({"token_type": "x"}, "token_type isn't an array of"),
        ({"eos_token_id": "x"}, "eos_token_id must be of type int"),
        ({"eos_token_id": True}, "eos_token_id must be of type int"),
        ({"add_bos_token": 1}, "add_bos_token must be of type bool"),
        ({"pre": 3}, "pre must be of type str"),
    ],
)
def test_keys_that_cannot_be_used_are_named(changes: dict[str, object], message: str) -> None:
    keys = gguf_keys(train_byte_level("smollm"), "smollm", **changes)
    with pytest.raises(CheckpointError, match=message) as refusal:
        from_gguf_keys(keys)
    assert "\n" not in str(refusal.value)
    assert '"model.gguf"' in str(refusal.value)


def test_the_json_of_the_vocabulary_is_what_was_trained() -> None:
    """Guards the fixture: merges and special tokens are really there."""
    model = json.loads(train_byte_level("smollm").to_str())["model"]
    assert len(model["merges"]) > 200
    assert [model["vocab"][token] for token in SPECIAL] == [0, 1, 2]
