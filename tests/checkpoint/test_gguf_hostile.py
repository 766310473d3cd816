"""Damaged and malicious GGUF files: one line of CheckpointError, no memory, no time."""

from __future__ import annotations

import os
import re
import struct
import tempfile
import time
import tracemalloc
from pathlib import Path

import pytest
from checkpoint.gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    SMALL_DATA,
    SMALL_KEYS,
    STRING,
    U8,
    U32,
    U64,
    Tensor,
    array,
    gguf_bytes,
    scalar,
    small_file,
    string,
    text,
    u32,
    u64,
)
from hypothesis import example, given
from hypothesis import strategies as st

from kvist.checkpoint.files import READABLE_TYPES
from kvist.checkpoint.ggml_types import GGML_TYPES
from kvist.checkpoint.gguf import GgufFile
from kvist.errors import CheckpointError

HUGE = (1 << 64) - 1


HANG_S = 60
"""Processor time that nothing here comes near unless it walks what a file merely claims to hold."""


def read_everything(path: Path) -> None:
    """Open a file and decode all that is in it."""
    file = GgufFile(path)
    for value in file.metadata.values():
        if not isinstance(value, (bool, int, float, str)):
            list(value)
    for info in file.tensors.values():
        if info.type in READABLE_TYPES:
            assert file.raw(info.name).nbytes == info.num_bytes
    file.config  # noqa: B018 - reading it is the test
    file.generation_config  # noqa: B018
    file.close()


def refusal(path: Path) -> CheckpointError:
    """Return the error of a file that must be refused, after holding it to one line, little memory and time."""
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(CheckpointError) as caught:
            GgufFile(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20, peak
    assert time.process_time() - start < HANG_S
    assert_one_line(caught.value)
    return caught.value


def assert_one_line(error: CheckpointError) -> None:
    assert len(str(error).splitlines()) == 1, error
    assert str(error).isprintable(), error
    assert len(str(error)) < 700, error


def one_tensor(tensor: Tensor, data: bytes = bytes(64), **options: int) -> bytes:
    return gguf_bytes([], [tensor], data, **options)


F32_BYTES = struct.pack("<f", 1)
LIES = {
    "empty file": (b"", "is empty"),
    "only the magic": (b"GGUF", "the version at byte 4 takes 4 bytes, the file has 0 left"),
    "another format": (b"PK\x03\x04 and so on", r'not a GGUF file: it starts with "PK\\x03\\x04"'),
    "line breaks as magic": (b"\n\r\x85\x0b", "not a GGUF file"),
    "version 1": (gguf_bytes(version=1), "GGUF version 1; supported: 2, 3"),
    "version 4": (gguf_bytes(version=4), "GGUF version 4; supported: 2, 3"),
    "version 0": (gguf_bytes(version=0), "GGUF version 0; supported: 2, 3"),
    "big-endian": (b"GGUF" + struct.pack(">I", 3) + bytes(16), "big-endian"),
    "keys without end": (gguf_bytes(num_keys=HUGE), f"claims {HUGE} keys, at most 65536"),
    "more keys than bytes": (gguf_bytes(num_keys=65536), "name of key 0"),
    "tensors without end": (gguf_bytes(num_tensors=HUGE), f"claims {HUGE} tensors, at most 1048576"),
    "more tensors than bytes": (gguf_bytes(num_tensors=1000), "name of tensor 0"),
    "key name without end": (
        gguf_bytes([], num_keys=1) + u64(HUGE),
        "is 18446744073709551615 bytes long, at most 65535",
    ),
    "key name too long": (gguf_bytes([("k" * 65536, scalar(U8, 1))]), "is 65536 bytes long, at most 65535"),
    "key name no UTF-8": (gguf_bytes([(b"\xff\n", scalar(U8, 1))]), "name of key 0 at byte 32 isn't UTF-8"),
    "key twice": (gguf_bytes([("a\nb", scalar(U8, 1))] * 2), r'key "a\\nb" occurs twice'),
    "text without end": (gguf_bytes([("k", text("", length=HUGE))]), "ends behind|takes 18446744073709551623 bytes"),
    "text longer than the file": (gguf_bytes([("k", text("abc", length=4))]), 'the value of "k"'),
    "unknown value type": (gguf_bytes([("k", u32(13) + bytes(8))]), 'the value of "k" has the unknown type 13'),
    "unknown element type": (gguf_bytes([("k", array(99, []))]), "unknown type 99"),
    "numbers without end": (
        gguf_bytes([("k", array(F32, [F32_BYTES], count=HUGE))]),
        f"takes {4 * HUGE} bytes, the file has 4",
    ),
    "numbers wrapping to 4 bytes": (
        gguf_bytes([("k", array(F32, [F32_BYTES], count=(1 << 62) + 1))]),
        "the file has 4 left",
    ),
    "bools without end": (gguf_bytes([("k", array(BOOL, [], count=1 << 40))]), "the file has 0 left"),
    "strings without end": (gguf_bytes([("k", array(STRING, [], count=HUGE))]), f"brings its strings to {HUGE}"),
    "more strings than bytes": (
        gguf_bytes([("k", array(STRING, [string("a")], count=2))]),
        "claims 2 strings, the file has 9",
    ),
    "a string without end in a list": (
        gguf_bytes([("k", array(STRING, [string("a"), string("b", length=HUGE)]))]),
        "takes 18446744073709551632 bytes",
    ),
    "a string past the end in a list": (
        gguf_bytes([("k", array(STRING, [string("a", length=12), string("b")]))]),
        "ends behind the end of the file|takes",
    ),
    "arrays of arrays": (gguf_bytes([("k", array(ARRAY, [u32(U8) + u64(1) + b"a"]))]), "array of arrays"),
    "arrays nested deeply": (gguf_bytes([("k", array(ARRAY, [(u32(ARRAY) + u64(1)) * 100_000]))]), "array of arrays"),
    "alignment 0": (gguf_bytes([("general.alignment", scalar(U32, 0))]), "power of two"),
    "alignment 48": (gguf_bytes([("general.alignment", scalar(U32, 48))]), 'is "48"'),
    "alignment no number": (gguf_bytes([("general.alignment", text("a\u2028b"))]), r'is "a\\u2028b"'),
    "alignment a list": (gguf_bytes([("general.alignment", array(STRING, []))]), "power of two"),
    "alignment without end": (
        gguf_bytes([("general.alignment", scalar(U64, 1 << 63))], [Tensor("t", (1,), 0, 0)], bytes(64)),
        "ends at byte 9223372036854775812",
    ),
    "tensor name too long": (one_tensor(Tensor("t" * 1025, (1,), 0, 0)), "is 1025 bytes long, at most 1024"),
    "tensor name no UTF-8": (one_tensor(Tensor(b"\xfe", (1,), 0, 0)), "name of tensor 0 .* isn't UTF-8"),
    "tensor twice": (
        gguf_bytes([], [Tensor("t", (1,), 0, 0), Tensor("t", (1,), 0, 32)], bytes(64)),
        '"t" occurs twice',
    ),
    "dimensions without end": (
        one_tensor(Tensor("t", (1,), 0, 0, num_dimensions=(1 << 32) - 1)),
        "has 4294967295 dimensions",
    ),
    "five dimensions": (one_tensor(Tensor("t", (1,) * 5, 0, 0)), "has 5 dimensions, at most 4"),
    "an empty tensor": (one_tensor(Tensor("t", (0, 5), 0, 0)), r"sizes \(0, 5\)"),
    "a size without end": (one_tensor(Tensor("t", (HUGE,), 0, 0)), "the file has"),
    "sizes whose product wraps to 0": (one_tensor(Tensor("t", (1 << 32, 1 << 32), 0, 0)), "the file has"),
    "a row of half a block": (one_tensor(Tensor("t", (48, 2), 2, 0)), r"whole blocks of 32 \(q4_0\)"),
    **{
        f"a row of half a block of {kind.name}": (
            one_tensor(Tensor("t", (kind.block_elements // 2, 2), number, 0), bytes(4096)),
            rf"whole blocks of {kind.block_elements} \({kind.name}\)",
        )
        for number, kind in GGML_TYPES.items()
        if kind.block_elements > 1
    },
    **{
        f"a byte missing of {kind.name}": (
            one_tensor(Tensor("t", (kind.block_elements, 2), number, 0), bytes(2 * kind.block_bytes - 1)),
            "ends at byte",
        )
        for number, kind in GGML_TYPES.items()
        if kind.block_elements > 1
    },
    "no sizes for a packed type": (one_tensor(Tensor("t", (), 2, 0)), "whole blocks of 32"),
    "unknown tensor type": (one_tensor(Tensor("t", (32,), 43, 0)), "unknown type 43"),
    "tensor type given up": (one_tensor(Tensor("t", (32,), 31, 0)), "type 31, which llama.cpp has given up; convert"),
    "tensor type without end": (one_tensor(Tensor("t", (32,), (1 << 32) - 1, 0)), "unknown type 4294967295"),
    "offset off the alignment": (one_tensor(Tensor("t", (1,), 0, 4)), "offset 4, no multiple of 32"),
    "offset behind the file": (one_tensor(Tensor("t", (1,), 0, 64)), "ends at byte"),
    "offset without end": (one_tensor(Tensor("t", (1,), 0, HUGE - 31)), "ends at byte"),
    "one byte missing": (one_tensor(Tensor("t", (16,), 0, 0), bytes(63)), "ends at byte 128, the file has 127"),
    "tensors on one another": (
        gguf_bytes([], [Tensor("a", (16,), 0, 0), Tensor("b", (1,), 0, 32)], bytes(64)),
        'tensors "a" and "b" overlap',
    ),
    "tensors at one place": (
        gguf_bytes([], [Tensor("a", (1,), 0, 0), Tensor("b", (1,), 0, 0)], bytes(64)),
        'tensors "a" and "b" overlap',
    ),
    "part of a split model": (
        gguf_bytes([("split.count", scalar(2, 3))]),
        'says it is part 1 of "3", where part 1 of 1 belongs',
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_each_lie_is_refused_by_name(tmp_path, lie) -> None:
    data, message = LIES[lie]
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    assert re.search(message, str(refusal(path)))


def test_a_file_cut_anywhere_is_refused(tmp_path) -> None:
    whole = small_file()
    path = tmp_path / "x.gguf"
    path.write_bytes(whole)
    read_everything(path)
    for num_bytes in range(len(whole)):
        path.write_bytes(whole[:num_bytes])
        with pytest.raises(CheckpointError) as caught:
            GgufFile(path)
        assert_one_line(caught.value)


@given(
    changes=st.lists(st.tuples(st.integers(0, len(small_file()) - 1), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 8),
)
def test_flipped_bytes_are_read_or_refused(changes, cut) -> None:
    data = bytearray(small_file())
    for position, value in changes:
        data[position] = value
    assert_read_or_refused(bytes(data[: len(data) - cut]))


@given(
    position=st.integers(0, len(small_file()) - 8),
    value=st.sampled_from([0, 1, 2**31 - 1, 2**32 - 1, 2**32, 2**62 + 1, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1]),
)
def test_extreme_numbers_anywhere_are_read_or_refused(position, value) -> None:
    data = bytearray(small_file())
    data[position : position + 8] = u64(value)
    assert_read_or_refused(bytes(data))


@given(st.binary(max_size=200))
@example(bytes(200))
def test_anything_behind_the_magic_is_read_or_refused(data) -> None:
    assert_read_or_refused(b"GGUF" + u32(3) + data)


def assert_read_or_refused(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.gguf"
        path.write_bytes(data)
        try:
            read_everything(path)
        except CheckpointError as error:
            assert_one_line(error)


SPARSE_HEADS = {
    "names of no length": gguf_bytes(num_keys=65536),
    "tensors of no name": gguf_bytes(num_tensors=1 << 20),
    "the most strings allowed, all empty": gguf_bytes([("k", array(STRING, [], count=(1 << 22) + 1))], num_keys=2),
    "a name as long as it may be": gguf_bytes([], num_keys=4) + u64(65535),
    "a text of a terabyte": gguf_bytes([("k", text("", length=1 << 40))], num_keys=2),
    "numbers of half a terabyte": gguf_bytes([("k", array(U8, [], count=1 << 39))], num_keys=3),
}


@pytest.mark.parametrize("head", SPARSE_HEADS)
def test_a_terabyte_of_zeros_is_refused_at_once(tmp_path, head) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(SPARSE_HEADS[head])
    os.truncate(path, 1 << 40)
    refusal(path)


def test_many_strings_are_walked_in_bounded_time(tmp_path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_bytes([("k", array(STRING, [], count=1 << 22))]))
    os.truncate(path, 1 << 30)
    start = time.process_time()
    file = GgufFile(path)
    assert time.process_time() - start < HANG_S
    assert len(file.metadata["k"]) == 1 << 22


def test_what_leads_nowhere_or_to_no_regular_file_is_refused(tmp_path) -> None:
    (tmp_path / "directory.gguf").mkdir()
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "broken.gguf").symlink_to(tmp_path / "nothing")
    (tmp_path / "loop.gguf").symlink_to(tmp_path / "loop.gguf")
    (tmp_path / "zeros.gguf").symlink_to("/dev/zero")
    expected = {
        "missing.gguf": "no such file",
        "directory.gguf": "is a directory",
        "pipe.gguf": "is a pipe, socket or device",
        "zeros.gguf": "is a pipe, socket or device",
        "broken.gguf": "a link to a file that isn't there",
        "loop.gguf": "can't read",
        "n\0l": "can't read",
        "n" * 300: "can't read",
    }
    for name, message in expected.items():
        assert message in str(refusal(tmp_path / name))


def test_a_link_out_of_the_directory_is_followed(tmp_path) -> None:
    blob = tmp_path / "blobs" / "3f5a"
    blob.parent.mkdir()
    blob.write_bytes(small_file())
    link = tmp_path / "model.gguf"
    link.symlink_to(blob)
    assert GgufFile(link).raw("a.weight").tolist() == list(SMALL_DATA[:68])


def test_a_text_of_a_gigabyte_is_refused_when_it_is_asked_for(tmp_path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_bytes([("general.architecture", text("", length=1 << 30))]))
    os.truncate(path, 1 << 31)
    file = GgufFile(path)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="has 1073741824 bytes, at most 67108864 are allowed"):
        file.config  # noqa: B018
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("key", ["attention.head_count", "attention.head_count_kv", "block_count"])
def test_a_number_for_each_of_a_billion_layers_is_refused(tmp_path, key) -> None:
    path = tmp_path / "x.gguf"
    keys = [item for item in SMALL_KEYS if item[0] != f"llama.{key}"]
    path.write_bytes(gguf_bytes([*keys, (f"llama.{key}", array(U8, [], count=1 << 30))]))
    os.truncate(path, 1 << 31)
    file = GgufFile(path)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="must be a whole number"):
        file.config  # noqa: B018
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_rope_factors_are_read_from_the_tensor_and_held_to_their_size(tmp_path) -> None:
    path = tmp_path / "x.gguf"
    factors = struct.pack("<4f", 1, 1, 4, 8)
    path.write_bytes(gguf_bytes(SMALL_KEYS, [Tensor("rope_freqs.weight", (4,), 0, 0)], factors))
    assert GgufFile(path).config["rope_scaling"] == {"rope_type": "factors", "factors": [1, 1, 4, 8]}
    path.write_bytes(gguf_bytes(SMALL_KEYS, [Tensor("rope_freqs.weight", (4,), 1, 0)], factors))
    with pytest.raises(CheckpointError, match=r'x\.gguf": rope_freqs.weight must hold a few f32, got 8 bytes of f16'):
        GgufFile(path).config  # noqa: B018
    path.write_bytes(gguf_bytes(SMALL_KEYS, [Tensor("rope_freqs.weight", (1 << 28,), 0, 0)]))
    os.truncate(path, 1 << 31)
    with pytest.raises(CheckpointError, match="got 1073741824 bytes of f32"):
        GgufFile(path).config  # noqa: B018
