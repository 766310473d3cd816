"""A stream of ids gives the text that decoding them at once gives, and never takes anything back."""

from __future__ import annotations

import pytest
from checkpoint.vocabularies import (
    from_directory,
    from_gguf_keys,
    gguf_keys,
    pushed,
    train_byte_level,
    train_space_marked,
    write_directory,
)
from hypothesis import given
from hypothesis import strategies as st

from kvist.checkpoint.catalog import open_checkpoint
from kvist.checkpoint.text_stream import TextStream
from kvist.checkpoint.tokenizer import Tokenizer, load_tokenizer

BYTE_LEVEL = train_byte_level("smollm")


@pytest.fixture(scope="module", params=["smollm2", "byte level", "space marked", "space marked and prepended"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    if request.param == "smollm2":
        found = load_tokenizer(open_checkpoint("smollm2-135m"))
        assert found is not None
        return found
    if request.param == "byte level":
        return from_gguf_keys(gguf_keys(BYTE_LEVEL, "smollm"))
    backend = train_space_marked(prepends_space=request.param.endswith("prepended"))
    return from_directory(write_directory(tmp_path_factory.mktemp("marked"), backend))


@given(st.data(), st.booleans())
def test_pushes_add_up_to_decode(tokenizer: Tokenizer, data: st.DataObject, skip: bool) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    assert "".join(pushed(tokenizer, ids, skip_special_tokens=skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.fixture(scope="module")
def single_bytes(tokenizer: Tokenizer) -> list[int]:
    """Tokens of one byte each, in the order of the bytes."""
    found = {piece: i for i in range(tokenizer.vocab_size) if len(piece := tokenizer.token_bytes(i)) == 1}
    return [found[piece] for piece in sorted(found)]


@given(st.data())
def test_bytes_in_any_order(tokenizer: Tokenizer, single_bytes: list[int], data: st.DataObject) -> None:
    """Broken characters of every kind, which whole tokens seldom make."""
    ids = data.draw(st.lists(st.sampled_from(single_bytes), max_size=24))
    parts = pushed(tokenizer, ids)
    assert "".join(parts) == tokenizer.decode(ids)
    raw = b"".join(map(tokenizer.token_bytes, ids)).decode(errors="replace")
    assert "".join(parts) in {raw, raw.removeprefix(" ")}


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_what_is_whole_is_never_replaced(text: str) -> None:
    """Without U+FFFD in the text none is emitted, however its bytes are cut, and each push is final."""
    stream = TextStream(lambda byte: bytes([byte]))
    parts = [*map(stream.push, text.encode()), stream.finish()]
    assert "".join(parts) == text
    assert parts[-1] == ""
    assert len([part for part in parts if part]) == len(text)


@given(st.binary(max_size=40))
def test_broken_bytes_are_replaced_as_python_does(data: bytes) -> None:
    stream = TextStream(lambda byte: bytes([byte]))
    assert "".join([*map(stream.push, data), stream.finish()]) == data.decode(errors="replace")


def test_a_character_waits_for_its_last_byte(tokenizer: Tokenizer) -> None:
    by_bytes = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    rocket = [by_bytes[bytes([byte])] for byte in "🚀".encode()]
    assert pushed(tokenizer, rocket) == ["", "", "", "🚀", ""]
    assert pushed(tokenizer, rocket[:2]) == ["", "", "\ufffd"]
    letter = by_bytes[b"a"]
    assert pushed(tokenizer, [*rocket[:3], letter]) == ["", "", "", "\ufffda", ""]


@given(st.data())
def test_byte_level_ids_decode_as_the_library_decodes_them(data: st.DataObject) -> None:
    tokenizer = from_gguf_keys(gguf_keys(BYTE_LEVEL, "smollm"))
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    assert tokenizer.decode(ids) == BYTE_LEVEL.decode(ids, skip_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == BYTE_LEVEL.decode(ids, skip_special_tokens=True)
