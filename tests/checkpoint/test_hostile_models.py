"""Whole models from strangers, opened as a command opens them: facts and ids, or one line of KvistError.

Single parsers have their own tests (`test_gguf_hostile`, `test_safetensors` ...); here is what comes out of them used.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import tracemalloc
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint.gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    I32,
    SMALL_KEYS,
    STRING,
    U8,
    U32,
    Tensor,
    array,
    gguf_bytes,
    part,
    scalar,
    string,
    text,
    u32,
)
from checkpoint.sentencepiece_bytes import model_bytes
from checkpoint.vocabularies import Scored, gguf_keys, train_byte_level, train_scored
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from kvist.cli.model_facts import model_facts
from kvist.engine.files import open_model
from kvist.errors import KvistError, RequestError
from kvist.spec.cache import CacheSpec

KINDS = ("gpt2", "llama")
Field = tuple[str, bytes]


@cache
def vocabulary(kind: str) -> dict[str, object]:
    if kind == "llama":
        return {**small(train_scored()).gguf_keys(), "tokenizer.ggml.add_space_prefix": True}
    return gguf_keys(train_byte_level("smollm"), "smollm")


def small(made: Scored) -> Scored:
    """Every kind of token, and few of them."""
    chosen = [*range(4), *range(4, 264, 8), *range(264, len(made.tokens), 16)]
    return Scored(*([column[i] for i in chosen] for column in (made.tokens, made.scores, made.types)))


def packed(value: object) -> bytes:
    if isinstance(value, bool):
        return scalar(BOOL, value)
    if isinstance(value, int):
        return scalar(U32, value)
    if isinstance(value, str):
        return text(value)
    assert isinstance(value, list)
    if isinstance(value[0], str):
        return array(STRING, [string(item) for item in value])
    code, kind = ("<f", F32) if isinstance(value[0], float) else ("<i", I32)
    return array(kind, [struct.pack(code, item) for item in value])


def fields(kind: str, **changes: bytes) -> list[Field]:
    found = {name: packed(value) for name, value in vocabulary(kind).items()}
    found |= {"tokenizer.chat_template": text("{{ messages[0].content }}")}
    return [*(pair for pair in SMALL_KEYS if not str(pair[0]).startswith("tokenizer")), *{**found, **changes}.items()]


def file_bytes(kind: str, **changes: bytes) -> bytes:
    num_tokens = len(vocabulary(kind)["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    embedding = Tensor("token_embd.weight", (32, num_tokens), 0, 0)
    return gguf_bytes(fields(kind, **changes), [embedding], bytes(128 * num_tokens))


def use(path: Path) -> None:
    """What a command does before it loads weights."""
    with open_model(path) as files:
        json.dumps(model_facts(files, CacheSpec("bf16")), allow_nan=False)
        if files.tokenizer is not None:
            for said in ("fox <s> 12\n🚀", "<|im_end|>"):
                ids = files.tokenizer.encode(said)
                assert all(0 <= token_id < files.tokenizer.vocab_size for token_id in ids)
                files.tokenizer.decode(ids)
            if files.has_template:
                files.encode_chat([{"role": "user", "content": "fox <s>"}])


def outcome(path: Path) -> str:
    """The error's line, empty where there was none."""
    message = ""
    try:
        use(path)
    except KvistError as error:
        message = str(error) or repr(error)
    assert message.isprintable(), message
    assert len(message) < 2500, message
    return message


@pytest.mark.parametrize("kind", KINDS)
def test_the_sound_files_are_used(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(file_bytes(kind))
    use(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_cut_in_every_section(tmp_path: Path, kind: str) -> None:
    """At each key's name, type, length and value, at the tensors, in the padding and in the data."""
    whole, path = file_bytes(kind), tmp_path / "model.gguf"
    starts, position = [0, 4, 8, 16, 24], 24
    for name, value in fields(kind):
        inner = (0, 8, 8 + len(name), 12 + len(name), 8 + len(name) + len(value) // 2)
        starts += [position + step for step in inner]
        position += 8 + len(name) + len(value)
    for cut in [
        *starts,
        position,
        position + 9,
        *range(position + 60, len(whole), max(1, len(whole) // 40)),
        len(whole) - 1,
    ]:
        path.write_bytes(whole[:cut])
        assert outcome(path), cut


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_flipped_bytes(tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject) -> None:
    changed = bytearray(file_bytes(kind))
    header = len(changed) - 128 * len(vocabulary(kind)["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("flipped") / "model.gguf"
    path.write_bytes(bytes(changed))
    outcome(path)


ODD_VALUES: dict[str, bytes] = {
    "a number": scalar(U32, 7),
    "a large number": scalar(U32, 2**32 - 1),
    "a truth value": scalar(BOOL, 1),
    "a text": text("x\ny"),
    "no text": text(b"\xff"),
    "an empty list": array(STRING, []),
    "a list of numbers": array(U32, [u32(1)] * 3),
    "a list of bytes": array(U8, [b"\x01"] * 3),
    "a list of texts": array(STRING, [string("a"), string("b")]),
    "the same text twice": array(STRING, [string("a"), string("a")]),
    "nested lists": array(ARRAY, [u32(ARRAY) + u32(ARRAY)]),
    "a list that claims too much": array(STRING, [string("a")], count=2**63),
    "numbers that claim too much": array(F32, [], count=2**62),
    "not a number": array(F32, [struct.pack("<f", float("nan"))] * 3),
}
TOKENIZER_KEYS = (
    "model", "pre", "tokens", "token_type", "scores", "merges", "bos_token_id", "eos_token_id", "eot_token_id",
    "unknown_token_id", "padding_token_id", "add_bos_token", "add_eos_token", "add_space_prefix",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", [*TOKENIZER_KEYS, "chat_template", "chat_templates"])
def test_any_value_under_any_key(tmp_path: Path, kind: str, key: str) -> None:
    full = f"tokenizer.{key}" if key.startswith("chat") else f"tokenizer.ggml.{key}"
    for number, value in enumerate(ODD_VALUES.values()):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(file_bytes(kind, **{full: value}))
        outcome(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_of_terabytes_takes_no_memory(tmp_path: Path, kind: str) -> None:
    for number, value in enumerate(("tokens", "scores", "merges", "token_type")):
        path = tmp_path / f"{number}.gguf"
        element = STRING if value in ("tokens", "merges") else F32
        path.write_bytes(file_bytes(kind, **{f"tokenizer.ggml.{value}": array(element, [], count=1 << 38)}))
        os.truncate(path, 1 << 41)
        tracemalloc.start()
        assert outcome(path) or f"tokenizer.ggml.{value}" not in vocabulary(kind)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
        tracemalloc.stop()


def test_a_split_model_with_hostile_parts(tmp_path: Path) -> None:
    first = tmp_path / "m-00001-of-00003.gguf"
    first.write_bytes(part(0, 3))
    hostile: dict[str, Callable[[Path], object]] = {
        "is a pipe": os.mkfifo,
        "is a directory": Path.mkdir,
        "is a link": lambda path: path.symlink_to("/dev/zero"),
        "is itself": lambda path: path.symlink_to(path),
        "is empty": Path.touch,
        "is a pickle": lambda path: path.write_bytes(pickle.dumps([1])),
        "is sparse": lambda path: (path.write_bytes(part(1, 3)[:100]), os.truncate(path, 1 << 40)),
    }
    for make in hostile.values():
        second, third = (tmp_path / f"m-0000{number}-of-00003.gguf" for number in (2, 3))
        for path in (second, third):
            make(path)
        assert outcome(first)
        for path in (second, third):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "vocab_size": 1600, "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "rope_scaling": None, "head_dim": 16, "tie_word_embeddings": True, "eos_token_id": 2, "bos_token_id": 1,
    "sliding_window": None, "layer_types": None, "rope_parameters": None, "text_config": None, "dtype": "float32",
    "quantization_config": None, "partial_rotary_factor": 1.0,
}  # fmt: skip
GENERATION = {
    "do_sample": True, "temperature": 0.6, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1,
    "eos_token_id": [2],
}  # fmt: skip
SETTINGS = {
    "bos_token": "<s>", "eos_token": {"content": "</s>"}, "added_tokens_decoder": None, "unk_token": None,
    "chat_template": "{{ messages }}", "legacy": True, "add_bos_token": True, "add_eos_token": False,
    "add_prefix_space": True,
}  # fmt: skip


def changed(sound: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The sound object with some values replaced."""
    return st.dictionaries(st.sampled_from(sorted(sound)), JSON, max_size=3).map(lambda more: {**sound, **more})


def write_directory(path: Path, config: object, generation: object, settings: object) -> None:
    documents = {"config": config, "generation_config": generation, "tokenizer_config": settings}
    for name, value in documents.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    (path / "model.safetensors").write_bytes(save({"a": np.zeros((2, 2), "<f4")}))
    (path / "tokenizer.model").write_bytes(model_bytes(small(train_scored())))


@given(changed(CONFIG), changed(GENERATION), changed(SETTINGS))
def test_any_json_in_a_directory(
    tmp_path_factory: pytest.TempPathFactory, config: object, generation: object, settings: object
) -> None:
    path = tmp_path_factory.mktemp("directory")
    write_directory(path, config, generation, settings)
    outcome(path)


ODD_JSON = (
    None, True, -1, 0, 2**31, 2**70, 1e-320, 0.5, float("inf"), float("nan"), "", "x\n\u202e", "1", [], [1], ["a"], {},
    {"a": 1}, [[[]]], {"rope_type": "yarn"}, {"content": 3}, {"7": {"content": "a\nb", "special": True}},
)  # fmt: skip


@pytest.mark.parametrize("document", [0, 1, 2])
def test_any_value_under_any_key_of_a_document(tmp_path: Path, document: int) -> None:
    sound = (CONFIG, GENERATION, SETTINGS)
    for key in sound[document]:
        for value in ODD_JSON:
            documents = [{**other, key: value} if n == document else other for n, other in enumerate(sound)]
            write_directory(tmp_path, *documents)
            outcome(tmp_path)


@given(JSON, st.sampled_from(["config", "generation_config", "tokenizer_config", "added_tokens", "special_tokens_map"]))
def test_any_json_as_a_whole_file(tmp_path_factory: pytest.TempPathFactory, value: object, name: str) -> None:
    path = tmp_path_factory.mktemp("directory")
    write_directory(path, CONFIG, GENERATION, {})
    (path / f"{name}.json").write_text(json.dumps(value))
    outcome(path)


@given(data=st.data())
def test_flipped_bytes_in_a_tokenizer_json(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("directory")
    write_directory(path, CONFIG, GENERATION, SETTINGS)
    whole = bytearray(train_byte_level("smollm").to_str().encode())
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    (path / "tokenizer.json").write_bytes(bytes(whole[: len(whole) - data.draw(st.sampled_from([0, 0, 1, 400]))]))
    outcome(path)


def test_files_that_are_no_files(tmp_path: Path) -> None:
    for name in ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.model", "tokenizer.json"):
        for target in ("/dev/zero", "/dev/full", str(tmp_path), str(tmp_path / name)):
            path = tmp_path / f"{name}-{target.count('/')}"
            path.mkdir(exist_ok=True)
            write_directory(path, CONFIG, GENERATION, SETTINGS)
            (path / name).unlink(missing_ok=True)
            (path / name).symlink_to(target if target != str(tmp_path / name) else path / name)
            is_optional_and_broken = target == str(tmp_path / name) and name != "config.json"
            assert outcome(path) or is_optional_and_broken, (name, target)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "model.ckpt"])
def test_pickles_are_refused_by_name_wherever_they_stand(tmp_path: Path, name: str) -> None:
    write_directory(tmp_path, CONFIG, GENERATION, SETTINGS)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / name).write_bytes(pickle.dumps({"w": 1}))
    assert "pickle" in outcome(tmp_path)
    assert "pickle" in outcome(tmp_path / name)


def test_a_request_is_never_blamed_for_a_file(tmp_path: Path) -> None:
    """Which error it is decides about a server's answer."""
    path = tmp_path / "model.gguf"
    path.write_bytes(file_bytes("llama", **{"tokenizer.chat_template": text("{{ raise_exception('no') }}")}))
    with open_model(path) as files, pytest.raises(RequestError, match="refuses these messages"):
        files.encode_chat([{"role": "user", "content": "fox"}])
    path.write_bytes(file_bytes("llama", **{"tokenizer.chat_template": text("{{ messages[9].role }}")}))
    with open_model(path) as files, pytest.raises(KvistError, match="chat template fails"):
        files.encode_chat([{"role": "user", "content": "fox"}])
