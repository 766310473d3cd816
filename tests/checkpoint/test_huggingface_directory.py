"""Directories in Hugging Face's layout: one file or shards, links into a cache, and everything that can be missing."""

from __future__ import annotations

import json
import os
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvist.checkpoint.files import check_supported
from kvist.checkpoint.json_object import read_json_object
from kvist.checkpoint.safetensors import HuggingFaceDirectory, read_config
from kvist.errors import CheckpointError, UnsupportedError

CONFIG = {"model_type": "llama", "hidden_size": 4}
ARRAYS = {
    "embed": np.arange(12, dtype="<f4").reshape(3, 4),
    "half": np.arange(4, dtype="<f2"),
    "mask": np.zeros((2, 2), dtype=np.uint8),
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A model in one file."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_file(ARRAYS, tmp_path / "model.safetensors")
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A model in two files with their index."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_file({"embed": ARRAYS["embed"], "stray": ARRAYS["half"]}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"half": ARRAYS["half"], "mask": ARRAYS["mask"]}, tmp_path / "model-00002-of-00002.safetensors")
    write_index(tmp_path, {"embed": 1, "half": 2, "mask": 2})
    return tmp_path


def write_index(path: Path, shards: dict[str, object]) -> None:
    files = {name: f"model-{n:05}-of-00002.safetensors" if isinstance(n, int) else n for name, n in shards.items()}
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": files}))


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        HuggingFaceDirectory(path)
    message = str(caught.value)
    assert message.isprintable(), message
    return message


def assert_whole(path: Path) -> None:
    checkpoint = HuggingFaceDirectory(path)
    assert checkpoint.config == CONFIG
    assert set(checkpoint.tensors) == set(ARRAYS)
    for name, array in ARRAYS.items():
        info = checkpoint.tensors[name]
        assert (info.name, info.shape, info.num_bytes) == (name, array.shape, array.nbytes)
        if name != "mask":
            view = checkpoint.raw(name)
            assert view.tobytes() == array.tobytes()
            assert not view.flags.writeable
            assert not view.flags.owndata
    checkpoint.close()


def test_one_file(directory) -> None:
    assert_whole(directory)


def test_two_files_and_their_index(sharded) -> None:
    assert_whole(sharded)


def test_one_file_goes_before_an_index(directory) -> None:
    write_index(directory, {"embed": 1})
    assert_whole(directory)


@pytest.mark.parametrize("layout", ["directory", "sharded"])
def test_a_snapshot_made_of_links(tmp_path_factory, request, layout) -> None:
    source = request.getfixturevalue(layout)
    root = tmp_path_factory.mktemp("cache")
    blobs, snapshot = root / "blobs", root / "snapshots" / "4f1c"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(source.iterdir())):
        (blobs / str(number)).write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(Path("../../blobs") / str(number))
    assert_whole(snapshot)


def test_views_outlive_the_directory(directory) -> None:
    checkpoint = HuggingFaceDirectory(directory)
    view = checkpoint.raw("half")
    checkpoint.close()
    del checkpoint
    assert view.view("<f2").tolist() == [0, 1, 2, 3]


def test_generation_config_is_read_where_there_is_one(directory) -> None:
    assert HuggingFaceDirectory(directory).generation_config == {}
    (directory / "generation_config.json").write_text('{"temperature": 0.5}')
    assert HuggingFaceDirectory(directory).generation_config == {"temperature": 0.5}
    (directory / "generation_config.json").write_text("{")
    assert 'generation_config.json" is not valid JSON' in refusal(directory)


def test_a_missing_tensor_and_an_unsupported_type_are_named_when_they_are_read(directory) -> None:
    checkpoint = HuggingFaceDirectory(directory)
    with pytest.raises(CheckpointError, match='has no tensor "lm_head"'):
        checkpoint.raw("lm_head")
    with pytest.raises(UnsupportedError, match=r'tensor "mask" .* has weight type "u8"; supported: f32, f16, bf16'):
        checkpoint.raw("mask")
    check_supported(checkpoint, ["embed", "half"])
    with pytest.raises(UnsupportedError, match='"u8"'):
        check_supported(checkpoint)


@pytest.mark.parametrize(
    ("quantization", "shown"), [({"quant_method": "gptq"}, '"gptq"'), ({"bits": 4}, r'"\?"'), (3, '"3"')]
)
def test_quantised_weights_are_refused_by_the_name_of_their_method(directory, quantization, shown) -> None:
    (directory / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": quantization}))
    with pytest.raises(UnsupportedError, match=f"is quantised by {shown}, which isn't read"):
        check_supported(HuggingFaceDirectory(directory), ["embed"])


def test_missing_files_are_named(sharded) -> None:
    (sharded / "model-00002-of-00002.safetensors").unlink()
    assert 'lacks 1 of 2 weight files: "model-00002-of-00002.safetensors"; fetch them too' in refusal(sharded)
    write_index(sharded, {f"t{n}": f"shard{n:02}.safetensors" for n in range(30)})
    assert '30 of 30 weight files: "shard00.safetensors", ' in refusal(sharded)
    assert '"shard04.safetensors" and 25 more' in refusal(sharded)


def test_a_tensor_that_is_not_where_the_index_says(sharded) -> None:
    write_index(sharded, {"embed": 2, "half": 2, "more\n": 2})
    assert r'places in it: "embed", "more\n"; fetch it again' in refusal(sharded)


SHARD_NAMES = [
    "../model-00001-of-00002.safetensors",
    "sub/model.safetensors",
    "/etc/model.safetensors",
    "..\\model.safetensors",
    "C:model.safetensors",
    "..",
    "",
    "pytorch_model.bin",
    "line\nbreak.safetensors",
    "nul\0.safetensors",
    "\ud800.safetensors",
    None,
    3,
    ["model.safetensors"],
]


@pytest.mark.parametrize("name", SHARD_NAMES)
def test_an_index_names_files_of_its_own_directory_only(sharded, name) -> None:
    write = json.dumps({"weight_map": {"embed": name}})
    (sharded / "model.safetensors.index.json").write_text(write)
    assert "allowed: the name of a .safetensors file in the same directory" in refusal(sharded)


@pytest.mark.parametrize("index", ["[]", "{", '{"weight_map": {}}', '{"weight_map": ["a"]}', "{}", '{"weight_map": 1}'])
def test_an_index_without_a_map(sharded, index) -> None:
    (sharded / "model.safetensors.index.json").write_text(index)
    assert "index.json" in refusal(sharded)


def test_an_index_of_too_many_files(sharded) -> None:
    write_index(sharded, {f"t{n}": f"{n}.safetensors" for n in range(5000)})
    assert "names 5000 files; at most 4096 are allowed" in refusal(sharded)


def test_a_file_name_that_is_too_long_counts_as_missing(sharded) -> None:
    write_index(sharded, {"embed": "x" * 300 + ".safetensors"})
    assert "lacks 1 of 1 weight files" in refusal(sharded)


def test_pickled_weights_are_refused_by_name_and_not_read(directory) -> None:
    (directory / "model.safetensors").unlink()
    (directory / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(directory / "sprung")))
    assert 'weights as a pickle only ("pytorch_model.bin"), which can run code and is never read' in refusal(directory)
    assert not (directory / "sprung").exists()


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.system, (f"touch {self.path}",)


def test_a_directory_without_weights(directory) -> None:
    (directory / "model.safetensors").rename(directory / "adapter_model.safetensors")
    assert 'safetensors.index.json, only "adapter_model.safetensors"; fetch the weights too' in refusal(directory)
    (directory / "adapter_model.safetensors").unlink()
    assert "index.json; fetch the weights too" in refusal(directory)
    assert read_config(directory) == CONFIG


def test_weights_that_are_no_regular_file(directory) -> None:
    (directory / "model.safetensors").unlink()
    os.mkfifo(directory / "model.safetensors")
    assert "is a pipe, socket or device" in refusal(directory)
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors").mkdir()
    assert "is a directory; a regular file is needed" in refusal(directory)


def test_a_shard_that_is_damaged_is_named(sharded) -> None:
    path = sharded / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert 'model-00002-of-00002.safetensors" is damaged or cut short' in refusal(sharded)


CONFIGS = {
    "empty": (b"", "is not valid JSON"),
    "a list": (b"[1]", "must hold a JSON object, got list"),
    "half": (b'{"model_type": "llama"', "is not valid JSON"),
    "no UTF-8": (b'{"model_type": "\xff"}', "is not valid JSON"),
    "deep": (b"[" * 200_000, "is nested too deeply"),
    "without a type": (b'{"hidden_size": 1}', 'names no "model_type"'),
    "with a type that is a number": (b'{"model_type": 1}', 'names no "model_type"'),
}


@pytest.mark.parametrize("config", CONFIGS)
def test_a_broken_config(directory, config) -> None:
    data, message = CONFIGS[config]
    (directory / "config.json").write_bytes(data)
    assert message in refusal(directory)


def test_a_config_that_is_missing_or_a_link_to_nothing(directory) -> None:
    (directory / "config.json").unlink()
    assert "no such file" in refusal(directory)
    (directory / "config.json").symlink_to(directory / "nothing")
    assert "a link to a file that isn't there" in refusal(directory)


def test_of_a_name_that_occurs_twice_the_last_value_counts(directory) -> None:
    (directory / "config.json").write_text('{"model_type": "gpt2", "model_type": "llama", "hidden_size": 4}')
    assert_whole(directory)


def test_a_config_may_have_numbers_that_json_has_not(directory) -> None:
    (directory / "config.json").write_text('{"model_type": "llama", "limit": [0.0, Infinity]}')
    assert HuggingFaceDirectory(directory).config["limit"] == [0.0, float("inf")]


def test_a_config_of_a_terabyte_takes_no_memory(tmp_path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"{}")
    os.truncate(path, 1 << 40)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="at most 67108864 are allowed"):
        read_json_object(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
