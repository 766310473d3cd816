"""Sound GGUF files: same keys and same bytes as the ``gguf`` package reads, lazily and fast."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from checkpoint.gguf_bytes import (
    BOOL,
    SMALL_DATA,
    STRING,
    Tensor,
    array,
    gguf_bytes,
    scalar,
    small_file,
    string,
    text,
    u32,
)
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from hypothesis import given
from hypothesis import strategies as st

from kvist.checkpoint.catalog import find_model
from kvist.checkpoint.files import READABLE_TYPES, check_supported
from kvist.checkpoint.ggml_types import GGML_TYPES
from kvist.checkpoint.gguf import GgufFile
from kvist.errors import CheckpointError, UnsupportedError


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def plain(value: object) -> object:
    """A metadata value as the ``gguf`` package gives it: lists instead of arrays."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value if isinstance(value, (str, bool, int, float)) else list(value)


def assert_same_as_gguf_package(path: Path) -> None:
    reader, file = GGUFReader(path), GgufFile(path)
    expected = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert list(file.metadata) == list(expected)
    for key, value in file.metadata.items():
        assert repr(plain(value)) == repr(expected[key]), key  # by repr, which tells 1 from True and has NaN equal
    assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        info = file.tensors[tensor.name]
        assert info.type == tensor.tensor_type.name.lower()
        assert info.shape == tuple(reversed(tensor.shape.tolist()))
        assert info.num_bytes == tensor.n_bytes
        if info.type in READABLE_TYPES:
            np.testing.assert_array_equal(file.raw(info.name), tensor.data.reshape(-1).view(np.uint8))
        else:
            with pytest.raises(UnsupportedError, match=info.type):
                file.raw(info.name)


INT_RANGES = {
    GGUFValueType.UINT8: (0, 2**8 - 1),
    GGUFValueType.INT8: (-(2**7), 2**7 - 1),
    GGUFValueType.UINT16: (0, 2**16 - 1),
    GGUFValueType.INT16: (-(2**15), 2**15 - 1),
    GGUFValueType.UINT32: (0, 2**32 - 1),
    GGUFValueType.INT32: (-(2**31), 2**31 - 1),
    GGUFValueType.UINT64: (0, 2**64 - 1),
    GGUFValueType.INT64: (-(2**63), 2**63 - 1),
}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ELEMENTS = {
    **{kind: st.integers(low, high) for kind, (low, high) in INT_RANGES.items()},
    GGUFValueType.FLOAT32: st.floats(width=32),
    GGUFValueType.FLOAT64: st.floats(),
    GGUFValueType.BOOL: st.booleans(),
    GGUFValueType.STRING: TEXTS,
}


@st.composite
def values(draw: st.DrawFn) -> tuple[object, GGUFValueType, GGUFValueType | None]:
    kind = draw(st.sampled_from(sorted(ELEMENTS)))
    if draw(st.booleans()):
        return draw(ELEMENTS[kind]), kind, None
    return draw(st.lists(ELEMENTS[kind], min_size=1, max_size=6)), GGUFValueType.ARRAY, kind


@st.composite
def tensors(draw: st.DrawFn) -> tuple[np.ndarray, GGMLQuantizationType]:
    """A tensor of any type with random bytes; a packed one has its bytes a row as its last size."""
    kind = draw(st.sampled_from(sorted(gguf.GGML_QUANT_SIZES)).filter(lambda kind: kind != GGMLQuantizationType.Q8_1))
    block_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    num_blocks = draw(st.integers(1, 3))
    rows = draw(st.lists(st.integers(1, 3), max_size=3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return rng.integers(0, 256, (*rows, num_blocks * block_bytes), dtype=np.uint8), kind


@given(
    keys=st.dictionaries(
        TEXTS.filter(lambda key: not key.startswith(("GGUF.", "general.", "split."))), values(), max_size=8
    ),
    named=st.dictionaries(TEXTS, tensors(), max_size=6),
    alignment=st.sampled_from([None, 8, 32, 64, 4096]),
)
def test_same_as_the_gguf_package(keys, named, alignment) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "written.gguf"
        writer = GGUFWriter(path, "llama")
        if alignment is not None:
            writer.add_custom_alignment(alignment)
        for key, (value, kind, element_kind) in keys.items():
            writer.add_key_value(key, value, kind, element_kind)
        for name, (data, kind) in named.items():
            writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        assert_same_as_gguf_package(path)


def test_the_real_file_is_the_same_as_the_gguf_package_reads() -> None:
    assert_same_as_gguf_package(find_model("smollm2-135m"))


def test_the_real_file_opens_sooner_than_its_bytes_are_read_once() -> None:
    path = find_model("smollm2-135m")

    def seconds(work: Callable[[], object]) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    opened = [seconds(lambda: GgufFile(path).close()) for _ in range(7)]
    read = [seconds(path.read_bytes) for _ in range(3)]
    assert min(opened) < min(read), (opened, read)


def test_the_config_of_the_real_file_is_what_its_config_json_says() -> None:
    config = GgufFile(find_model("smollm2-135m")).config
    assert config == {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-05,
        "rope_theta": 100000.0,
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }


def test_every_type_has_the_block_that_the_gguf_package_says() -> None:
    ours = {number: (kind.name, kind.block_elements, kind.block_bytes) for number, kind in GGML_TYPES.items()}
    theirs = {kind.value: (kind.name.lower(), *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items() if kind in ours}
    # A block of q8_1 is two halfs and 32 bytes in ggml; the package still counts the floats of an older layout.
    # The type exists while a program runs and in no file.
    assert ours.pop(9) == ("q8_1", 32, 36)
    theirs.pop(9)
    # llama.cpp has it; gguf 0.19 not yet.
    assert ours.pop(42) == theirs.pop(42, ("q2_0", 64, 18))
    assert ours == theirs
    assert set(READABLE_TYPES) <= {name for name, _, _ in ours.values()}


def test_raw_is_a_read_only_view_of_the_file_that_outlives_it(tmp_path) -> None:
    file = GgufFile(write(tmp_path / "x.gguf", small_file()))
    view, again = file.raw("a.weight"), file.raw("a.weight")
    assert np.shares_memory(view, again)
    assert view.tolist() == list(SMALL_DATA[:68])
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    file.close()
    file.close()
    del file, again
    gc.collect()
    assert view.tolist() == list(SMALL_DATA[:68])
    assert file_is_released_with(view)


def file_is_released_with(view: np.ndarray) -> bool:
    """Whether the view owns no copy: its memory is a map's."""
    base = view
    while isinstance(base.base, np.ndarray):
        base = base.base
    return not base.flags.owndata


def test_a_missing_tensor_and_an_unsupported_type_are_named_when_they_are_read(tmp_path) -> None:
    tensors = [Tensor("good", (32,), 2, 0), Tensor("bad", (256,), 15, 32)]
    file = GgufFile(
        write(tmp_path / "x.gguf", gguf_bytes([("general.architecture", text("gpt2"))], tensors, bytes(32 + 292)))
    )
    assert file.tensors["bad"].num_bytes == 292
    assert len(file.raw("good")) == 18
    with pytest.raises(UnsupportedError, match=r'"bad".*"q8_k"; supported: f32, f16, bf16, q8_0, q4_0, q4_1'):
        file.raw("bad")
    with pytest.raises(CheckpointError, match='no tensor "ugly"'):
        file.raw("ugly")


def test_check_supported_looks_at_all_tensors_or_at_those_that_are_named(tmp_path) -> None:
    keys = [(key, scalar(4, 32)) for key in ("gpt2.embedding_length", "gpt2.feed_forward_length", "gpt2.block_count")]
    keys += [(key, scalar(4, 1)) for key in ("gpt2.attention.head_count", "gpt2.context_length", "gpt2.vocab_size")]
    keys += [("gpt2.attention.layer_norm_epsilon", scalar(6, 1e-5)), ("general.architecture", text("gpt2"))]
    tensors = [Tensor("good", (32,), 2, 0), Tensor("bad", (256,), 15, 32)]
    file = GgufFile(write(tmp_path / "x.gguf", gguf_bytes(keys, tensors, bytes(32 + 292))))
    check_supported(file, ["good"])
    with pytest.raises(UnsupportedError, match="q8_k"):
        check_supported(file)


def test_texts_are_decoded_only_when_asked_for(tmp_path) -> None:
    keys = [
        ("broken.text", text(b"\xff")),
        ("broken.list", array(STRING, [string("fine"), string(b"\xc3")])),
        ("whole", text("ok")),
    ]
    file = GgufFile(write(tmp_path / "x.gguf", gguf_bytes(keys)))
    assert file.metadata["whole"] == "ok"
    with pytest.raises(CheckpointError, match=r'"broken.text" at byte .* isn\'t UTF-8'):
        file.metadata["broken.text"]
    strings = file.metadata["broken.list"]
    assert len(strings) == 2
    assert next(iter(strings)) == "fine"
    with pytest.raises(CheckpointError, match=r"broken\.list"):
        strings[0]


def test_string_arrays_are_sequences(tmp_path) -> None:
    file = GgufFile(write(tmp_path / "x.gguf", small_file()))
    tokens = file.metadata["tokenizer.ggml.tokens"]
    assert list(tokens) == ["a", "", "né"]
    assert (tokens[0], tokens[-1], tokens[1:], len(tokens)) == ("a", "né", ["", "né"], 3)
    with pytest.raises(IndexError):
        tokens[3]


def test_a_bool_is_true_for_every_byte_but_zero(tmp_path) -> None:
    keys = [("one", u32(BOOL) + b"\x02"), ("many", array(BOOL, [b"\x00", b"\x01", b"\x80"]))]
    metadata = GgufFile(write(tmp_path / "x.gguf", gguf_bytes(keys))).metadata
    assert metadata["one"] is True
    assert metadata["many"].tolist() == [False, True, True]


def test_a_vocabulary_without_tensors_opens(tmp_path) -> None:
    file = GgufFile(write(tmp_path / "x.gguf", gguf_bytes([("general.architecture", text("llama"))])))
    assert dict(file.tensors) == {}


def test_version_2_is_read(tmp_path) -> None:
    data = small_file()
    file = GgufFile(write(tmp_path / "x.gguf", data[:4] + u32(2) + data[8:]))
    assert file.raw("b.weight").view("<f4").tolist() == [1, 2, 3, 4]
