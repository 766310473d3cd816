"""Safetensors files: the ``safetensors`` package reads the same, and what it refuses is refused."""

from __future__ import annotations

import json
import struct
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from kvist.checkpoint.files import TensorInfo
from kvist.checkpoint.mapped import MappedFile
from kvist.checkpoint.safetensors_header import read_header
from kvist.errors import CheckpointError, UnsupportedError

DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}


def header_of(data: bytes) -> dict[str, tuple[TensorInfo, int]]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.safetensors"
        path.write_bytes(data)
        file = MappedFile(path)
        try:
            return read_header(file.buffer, path)
        finally:
            file.close()


def pack(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


@st.composite
def named_arrays(draw: st.DrawFn) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    arrays = {}
    for name in draw(
        st.lists(st.text(max_size=8).filter(lambda name: name != "__metadata__"), unique=True, max_size=5)
    ):
        dtype = np.dtype(DTYPES[draw(st.sampled_from(sorted(DTYPES)))])
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        data = rng.integers(0, 2 if dtype.kind == "b" else 256, (*shape, dtype.itemsize), dtype=np.uint8)
        arrays[name] = np.ascontiguousarray(data).view(dtype).reshape(shape)
    return arrays


METADATA = st.dictionaries(st.text(max_size=4), st.text(max_size=4), min_size=1, max_size=2)  # of {} it writes no JSON


@given(named_arrays(), st.none() | METADATA)
def test_what_the_package_writes_is_read_back(arrays, metadata) -> None:
    written = save(arrays, metadata)
    found = header_of(written)
    tied = {name for name, kept in (metadata or {}).items() if kept in arrays}  # by chance
    assert set(found) == set(arrays) | tied
    for name, array in arrays.items():
        info, start = found[name]
        dtype = DTYPES[info.type.upper()]
        assert (info.name, info.shape, info.num_bytes, dtype) == (name, array.shape, array.nbytes, array.dtype)
        assert written[start : start + info.num_bytes] == array.tobytes()


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
SOUND = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [5], "data_offsets": [24, 34]},
    "c": {"dtype": "I8", "shape": [], "data_offsets": [34, 35]},
    "d": {"dtype": "F16", "shape": [0, 7], "data_offsets": [35, 35]},
}
SOUND_DATA = bytes(range(35))


def test_a_file_written_by_hand() -> None:
    data = pack(SOUND, SOUND_DATA)
    found = header_of(data)
    assert {name: info.shape for name, (info, _) in found.items()} == {"a": (2, 3), "b": (5,), "c": (), "d": (0, 7)}
    assert [start - (len(data) - 35) for _, start in found.values()] == [0, 24, 34, 35]


NUMBERS = st.one_of(
    st.integers(-3, 40), st.sampled_from([2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30])
)
ANYTHING = st.one_of(
    NUMBERS, st.none(), st.booleans(), st.floats(), st.sampled_from(["F32", "Q4", ""]), st.lists(NUMBERS, max_size=3)
)


@given(
    name=st.sampled_from(["a", "b", "c", "d", "e"]),
    part=st.sampled_from(["dtype", "shape", "data_offsets", "more"]),
    value=ANYTHING,
    num_bytes=st.sampled_from([34, 35, 35, 35, 36]),
)
def test_a_changed_header_is_read_as_the_package_reads_it_or_refused_as_there(name, part, value, num_bytes) -> None:
    header = {**SOUND, name: {**SOUND.get(name, ENTRY), part: value}}
    assert_same_verdict(pack(header, bytes(num_bytes)))


@given(
    st.lists(st.tuples(st.integers(0, len(pack(SOUND, SOUND_DATA)) - 1), st.integers(0, 255)), min_size=1, max_size=3)
)
def test_flipped_bytes_are_read_as_the_package_reads_them_or_refused(changes) -> None:
    data = bytearray(pack(SOUND, SOUND_DATA))
    for position, value in changes:
        data[position] = value
    assert_same_verdict(bytes(data), may_be_stricter=True)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_as_the_package_reads_them_or_refused(data) -> None:
    assert_same_verdict(data, may_be_stricter=True)


def assert_same_verdict(data: bytes, *, may_be_stricter: bool = False) -> None:
    """Read ``data`` here and by the package: the same tensors, or a refusal by both.

    Stricter here: names that occur twice. That can come of a flipped byte.
    """
    ours, theirs = (
        attempt(lambda: header_of(data), CheckpointError),
        attempt(lambda: deserialize(data), SafetensorError),
    )
    if isinstance(ours, CheckpointError):
        assert str(ours).isprintable()
        assert isinstance(theirs, SafetensorError) or (may_be_stricter and "twice" in str(ours)), (ours, theirs)
        return
    assert not isinstance(theirs, SafetensorError), theirs
    found = {
        name: (info.type.upper(), list(info.shape), data[start : start + info.num_bytes])
        for name, (info, start) in ours.items()
    }
    assert found == {name: (entry["dtype"], entry["shape"], bytes(entry["data"])) for name, entry in theirs}


def attempt(read: Callable[[], object], error: type[Exception]) -> object:
    try:
        return read()
    except error as refusal:
        return refusal


LIES = {
    "no length": (b"\x01\x02", "it has 2 bytes, its header's length alone takes 8"),
    "a header longer than the file": (pack({}, length=3), "claims a header of 3 bytes, the file has 2 after"),
    "a header without end": (pack({}, length=(1 << 64) - 1), "claims a header of 18446744073709551615 bytes"),
    "a web page": (pack(b"<html>"), "not a safetensors file: its header doesn't start with {"),
    "a list": (pack(b"[]"), "doesn't start with {"),
    "half a header": (pack(b'{"a":'), "is not valid JSON"),
    "line breaks in the header": (pack(b"{\n\n\r}x"), "is not valid JSON"),
    "no UTF-8": (pack(b'{"\xff": 1}'), "is not valid JSON"),
    "UTF-16": (pack(b"{\x00}\x00"), "is not valid JSON"),
    "deep nesting": (pack(b'{"a":' * 200_000), "is nested too deeply"),
    "a number of a million digits": (pack(b'{"a":' + b"1" * 1_000_000 + b"}"), "is not valid JSON"),
    "no number": (pack(b'{"a":{"b":NaN}}'), "NaN is no number of JSON"),
    "a name twice": (pack(b'{"a":1,"a":2}'), "a occurs twice"),
    "a tensor that is a number": (pack({"a\n": 1}), r'tensor "a\\n" must have dtype, shape and data_offsets'),
    "an unknown type": (pack({"a": {**ENTRY, "dtype": "Q4"}}, bytes(8)), 'unknown dtype "Q4"; known: BOOL'),
    "a type that is a list": (pack({"a": {**ENTRY, "dtype": ["F32"]}}, bytes(8)), "unknown dtype"),
    "a shape with a fraction": (pack({"a": {**ENTRY, "shape": [2.0]}}, bytes(8)), "whole numbers from 0"),
    "a shape that is true": (pack({"a": {**ENTRY, "shape": [True, 2]}}, bytes(8)), "whole numbers from 0"),
    "a shape below 0": (pack({"a": {**ENTRY, "shape": [-1, -2]}}, bytes(8)), "whole numbers from 0"),
    "a shape without end": (pack({"a": {**ENTRY, "shape": [1 << 32, 1 << 32]}}, bytes(8)), "an impossible size"),
    "a shape of other bytes": (
        pack({"a": {**ENTRY, "shape": [3]}}, bytes(8)),
        "has 8 bytes, its type and shape need 12",
    ),
    "half a byte": (pack({"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}}, b"x"), "need 1.5"),
    "one offset": (pack({"a": {**ENTRY, "data_offsets": [0]}}, bytes(8)), "two as data_offsets"),
    "offsets backwards": (pack({"a": {**ENTRY, "data_offsets": [8, 0]}}, bytes(8)), "has -8 bytes"),
    "behind the file": (pack({"a": {**ENTRY, "data_offsets": [8, 16]}}, bytes(8)), "starts at byte"),
    "one byte missing": (pack({"a": ENTRY}, bytes(7)), "describes 77 bytes, the file has 76"),
    "bytes left over": (pack({"a": ENTRY}, bytes(9)), "describes 77 bytes, the file has 78"),
    "tensors on one another": (pack({"a": ENTRY, "b": {**ENTRY, "data_offsets": [4, 12]}}, bytes(12)), '"a" ends at'),
    "tensors at one place": (pack({"a": ENTRY, "b": ENTRY}, bytes(8)), '"a" ends at'),
    "a hole": (pack({"a": ENTRY, "b": {**ENTRY, "data_offsets": [12, 20]}}, bytes(20)), '"a" ends at'),
    "metadata that is a number": (pack({"__metadata__": 1}), "__metadata__ isn't an object of texts"),
    "metadata with a number": (pack({"__metadata__": {"a": 1}}), "__metadata__ isn't an object of texts"),
}


@pytest.mark.parametrize("lie", LIES)
def test_each_lie_is_refused_by_name(lie) -> None:
    data, message = LIES[lie]
    with pytest.raises(CheckpointError, match=message) as caught:
        header_of(data)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


def test_an_unknown_type_is_sound_but_unsupported() -> None:
    with pytest.raises(UnsupportedError):
        header_of(pack({"a": {**ENTRY, "dtype": "F2"}}, bytes(8)))


def test_a_file_cut_anywhere_is_refused() -> None:
    data = pack(SOUND, SOUND_DATA)
    for num_bytes in range(1, len(data)):
        with pytest.raises(CheckpointError):
            header_of(data[:num_bytes])


def test_a_header_of_a_terabyte_takes_no_memory(tmp_path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 39) + b"{")
    with path.open("r+b") as file:
        file.truncate(1 << 40)
    mapped = MappedFile(path)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="claims a header of"):
        read_header(mapped.buffer, path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_tied_tensor_that_was_left_out_is_there_under_both_names() -> None:
    found = header_of(save({"kept": np.arange(3, dtype="<f4"), "other": np.zeros(2, "<f4")}, {"gone": "kept"}))
    (kept, start), (gone, again) = found["kept"], found["gone"]
    assert (gone.name, gone.shape, gone.num_bytes, again) == ("gone", kept.shape, kept.num_bytes, start)
    assert "other" in found
    misleading = {"format": "pt", "other": "kept", "x": "nowhere"}
    found = header_of(save({"kept": np.arange(3, dtype="<f4"), "other": np.zeros(2, "<f4")}, misleading))
    assert set(found) == {"kept", "other"}
    assert found["other"][0].shape == (2,)
