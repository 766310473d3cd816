"""Models split over several GGUF files: whole by any of their names, and one line where they don't belong together."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from checkpoint.gguf_bytes import SMALL_DATA, SMALL_KEYS, SMALL_TENSORS, U16, U32, gguf_bytes, part, scalar, small_file
from gguf import GGUFReader, GGUFWriter
from hypothesis import given
from hypothesis import strategies as st

from kvist.checkpoint.gguf import GgufFile
from kvist.checkpoint.gguf_split import MAX_PARTS, split_name
from kvist.checkpoint.tokenizer import load_tokenizer
from kvist.errors import CheckpointError


def write(directory: Path, count: int = 3, **claims: int) -> list[Path]:
    paths = [directory / f"m-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    for number, path in enumerate(paths):
        path.write_bytes(part(number, count, **claims))
    return paths


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        GgufFile(path)
    message = str(caught.value)
    assert message.isprintable(), message
    assert len(message) < 900, message
    return message


@pytest.mark.parametrize("number", [0, 1, 2])
def test_any_part_opens_the_whole_model(tmp_path: Path, number: int) -> None:
    paths = write(tmp_path)
    file = GgufFile(paths[number])
    assert file.path == paths[number]
    assert list(file.tensors) == [f"blk.{n}.weight" for n in range(3)]
    assert [file.raw(name).view("<f4").tolist() for name in file.tensors] == [[float(n)] * 4 for n in range(3)]
    assert file.config["hidden_size"] == 32
    assert load_tokenizer(file) is None
    view = file.raw("blk.2.weight")
    file.close()
    assert view.view("<f4")[0] == 2


def test_what_the_gguf_package_splits(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    writer.add_name("split")
    arrays = {f"t{n}": struct.pack("<8f", *range(n, n + 8)) for n in range(5)}
    for name, data in arrays.items():
        writer.add_tensor(name, np.frombuffer(data, "<f4").copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    paths = sorted(tmp_path.glob("*.gguf"))
    assert [path.name for path in paths] == [f"m-{n:05}-of-00003.gguf" for n in (1, 2, 3)]
    assert [len(GGUFReader(path).tensors) for path in paths] == [2, 2, 1]
    file = GgufFile(paths[2])
    assert {name: file.raw(name).tobytes() for name in file.tensors} == arrays
    assert file.metadata["general.name"] == "split"


def test_links_into_a_cache_are_parts_too(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    for number, path in enumerate(write(tmp_path)):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(blobs / str(number))
    assert len(GgufFile(snapshot / "m-00003-of-00003.gguf").tensors) == 3


def test_missing_parts_are_named(tmp_path: Path) -> None:
    paths = write(tmp_path, count=12)
    for path in (paths[1], *paths[3:11]):
        path.unlink()
    message = refusal(paths[0])
    assert "is one of 12 parts, of which 9 are missing beside it" in message
    assert '"m-00002-of-00012.gguf", "m-00004-of-00012.gguf"' in message
    assert message.endswith("and 4 more; fetch them too")


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    paths = write(tmp_path)
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    assert 'm-00002-of-00003.gguf" is damaged or cut short' in refusal(paths[0])
    paths[1].write_bytes(b"GGUX")
    assert 'm-00002-of-00003.gguf" is not a GGUF file' in refusal(paths[2])
    paths[1].unlink()
    os.mkfifo(paths[1])
    assert 'm-00002-of-00003.gguf" is a pipe' in refusal(paths[0])


def test_parts_of_different_models_are_told_apart(tmp_path: Path) -> None:
    first, second, third = write(tmp_path)
    whole = second.read_bytes()
    second.write_bytes(third.read_bytes())
    assert 'm-00002-of-00003.gguf" says it is part 3 of "3", where part 2 of 3 belongs' in refusal(first)
    second.write_bytes(part(1, 4))
    assert 'says it is part 2 of "4", where part 2 of 3 belongs' in refusal(first)
    second.write_bytes(small_file())
    assert 'says it is part 1 of "None", where part 2 of 3 belongs' in refusal(first)
    second.write_bytes(whole.replace(b"blk.1.weight", b"blk.0.weight"))
    assert 'm-00002-of-00003.gguf" both have a tensor "blk.0.weight"' in refusal(first)
    second.write_bytes(whole)
    first.write_bytes(part(0, 3, **{"tensors.count": 4}))
    assert "have 3 tensors, its header says " in refusal(third)


def test_a_part_that_lost_its_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "renamed.gguf"
    path.write_bytes(part(1, 3))
    assert 'says it is part 2 of "3", where part 1 of 1 belongs; parts keep the names' in refusal(path)


def test_one_part_of_one_is_a_file_like_any_other(tmp_path: Path) -> None:
    for name in ("m-00001-of-00001.gguf", "m.gguf"):
        for keys in (
            [],
            [("split.count", scalar(U16, 1)), ("split.no", scalar(U16, 0))],
            [("split.count", scalar(U32, 0))],
        ):
            path = tmp_path / name
            path.write_bytes(gguf_bytes([*SMALL_KEYS, *keys], SMALL_TENSORS, SMALL_DATA))
            assert len(GgufFile(path).tensors) == 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("m-00001-of-00002.gguf", ("m", 1, 2)),
        ("sub/a-b-00002-of-00002.gguf", ("sub/a-b", 2, 2)),
        ("-00001-of-00003.gguf", ("", 1, 3)),
        ("m-00001-of-00001.gguf", None),
        ("m-1-of-2.gguf", None),
        ("m-00001-of-00002.gguf.part", None),
        ("m.gguf", None),
    ],
)
def test_names(name: str, expected: tuple[str, int, int] | None) -> None:
    split = split_name(name)
    assert (None if split is None else (split.model, split.number, split.count)) == expected
    assert split is None or split.names()[split.number - 1] == name


@pytest.mark.parametrize(
    "name", ["m-00000-of-00002.gguf", "m-00003-of-00002.gguf", "m-00001-of-99999.gguf", "m-00001-of-00000.gguf"]
)
def test_names_of_parts_that_cannot_be(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(small_file())
    assert f"allowed: 1 to the number of parts, at most {MAX_PARTS}" in refusal(path)


@given(data=st.data())
def test_flipped_bytes_in_any_part_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    paths = write(tmp_path_factory.mktemp("split"), count=2)
    path = data.draw(st.sampled_from(paths))
    changed = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(changed[: len(changed) - data.draw(st.integers(0, 20))]))
    message = ""
    try:
        file = GgufFile(paths[0])
        for name in file.tensors:
            file.raw(name)
    except CheckpointError as error:
        message = str(error)
    assert message.isprintable()
    assert len(message) < 900
