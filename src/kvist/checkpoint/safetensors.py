"""A model as Hugging Face lays it out: a directory with config.json and one or many safetensors files.

Read are config.json, generation_config.json, and model.safetensors or else the files that
model.safetensors.index.json names. (tokenizer.json and its companions are the tokenizer's to read.) Pickled weights
(pytorch_model.bin) run code when they are read, and are refused by name. A downloaded snapshot consists of symbolic
links out of the directory, so links are followed; what an index names must lie in the directory by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from kvist.checkpoint.composed import compose
from kvist.checkpoint.disk import exists, reason
from kvist.checkpoint.files import Composed, TensorInfo, find_tensor, listed, quote, quote_path
from kvist.checkpoint.json_object import read_json_object
from kvist.checkpoint.mapped import MappedFile
from kvist.checkpoint.safetensors_header import read_header
from kvist.errors import CheckpointError

CONFIG_NAME = "config.json"
GENERATION_CONFIG_NAME = "generation_config.json"
WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
MAX_SHARDS = 4096


class HuggingFaceDirectory:
    """A directory as a ``Checkpoint``.

    Raises CheckpointError where a file of it is missing or damaged, or contradicts another.
    """

    format: Literal["huggingface"] = "huggingface"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = read_config(path)
        generation = path / GENERATION_CONFIG_NAME
        self.generation_config = read_json_object(generation) if exists(generation) else {}
        self.metadata: Mapping[str, object] = {}
        self._files: list[MappedFile] = []
        self._places: dict[str, tuple[MappedFile, int]] = {}
        tensors: dict[str, TensorInfo] = {}
        self._infos = tensors
        try:
            for shard, names in _weight_files(path).items():
                tensors.update(self._read_shard(path / shard, names))
            found = compose(tensors, self._view, self.config)
        except CheckpointError:
            self.close()
            raise
        self.tensors: Mapping[str, TensorInfo] = found.tensors
        self.composed: Mapping[str, Composed] = found.composed

    def _read_shard(self, path: Path, names: list[str] | None) -> dict[str, TensorInfo]:
        """Map one file and return the tensors that it is to bring: ``names``, all if None."""
        file = MappedFile(path)
        self._files.append(file)
        found = read_header(file.buffer, path)
        wanted = list(found) if names is None else names
        missing = [name for name in wanted if name not in found]
        if missing:
            raise CheckpointError(
                f"{quote_path(path)} lacks tensors that {INDEX_NAME} places in it: {listed(missing)}; fetch it again"
            )
        for name in wanted:
            self._places[name] = (file, found[name][1])
        return {name: found[name][0] for name in wanted}

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        info = find_tensor(self, name)
        assert name not in self.composed, name
        return self._view(info.name)

    def _view(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor of any type."""
        file, start = self._places[name]
        return file.view(start, self._infos[name].num_bytes)

    def close(self) -> None:
        for file in self._files:
            file.close()


def read_config(directory: Path) -> dict[str, object]:
    """Return the directory's config.json, which must name a ``model_type``; reads no weights."""
    config = read_json_object(directory / CONFIG_NAME)
    if not isinstance(config.get("model_type"), str):
        raise CheckpointError(
            f'{quote_path(directory / CONFIG_NAME)} names no "model_type"; add the one of its family, such as "llama"'
        )
    return config


def _weight_files(directory: Path) -> dict[str, list[str] | None]:
    """Return the files that hold the weights, each with the tensors to take from it (None: all)."""
    if exists(directory / WEIGHTS_NAME):
        return {WEIGHTS_NAME: None}
    if not exists(directory / INDEX_NAME):
        raise _no_weights(directory)
    weight_map = read_json_object(directory / INDEX_NAME).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f'{quote_path(directory / INDEX_NAME)} has no "weight_map" of tensors to files; fetch it again'
        )
    shards: dict[str, list[str] | None] = {}
    for name, shard in weight_map.items():
        if not _is_plain_name(shard):
            raise CheckpointError(
                f"{quote_path(directory / INDEX_NAME)} places tensor {quote(name)} in {quote(shard)}; "
                "allowed: the name of a .safetensors file in the same directory"
            )
        names = shards.setdefault(shard, [])
        assert names is not None
        names.append(name)
    if len(shards) > MAX_SHARDS:
        raise CheckpointError(
            f"{quote_path(directory / INDEX_NAME)} names {len(shards)} files; at most {MAX_SHARDS} are allowed"
        )
    missing = sorted(shard for shard in shards if not exists(directory / shard))
    if missing:
        raise CheckpointError(
            f"{quote_path(directory)} lacks {len(missing)} of {len(shards)} weight files: {listed(missing)}; "
            "fetch them too"
        )
    return shards


def _is_plain_name(shard: object) -> bool:
    """Whether an index's entry is a file name and no path."""
    return (
        isinstance(shard, str)
        and shard.endswith(".safetensors")
        and shard.isprintable()
        and not set(shard) & set("/\\:")
    )


def _no_weights(directory: Path) -> CheckpointError:
    """Return the error for a directory without safetensors weights, which names what is there instead."""
    names = file_names(directory)
    pickles = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".ckpt"))]
    others = [name for name in names if name.endswith(".safetensors")]
    if pickles:
        return CheckpointError(
            f"{quote_path(directory)} has its weights as a pickle only ({listed(pickles)}), which can run code and is "
            f"never read; needed: {WEIGHTS_NAME}, or {INDEX_NAME} and its files"
        )
    instead = f", only {listed(others)}" if others else ""
    return CheckpointError(
        f"{quote_path(directory)} has no {WEIGHTS_NAME} and no {INDEX_NAME}{instead}; fetch the weights too"
    )


def file_names(directory: Path) -> list[str]:
    """Return the names in a directory in order; raises CheckpointError where it can't be read."""
    try:
        return sorted(entry.name for entry in directory.iterdir())
    except OSError as error:
        raise CheckpointError(f"can't read {quote_path(directory)}: {reason(error)}") from None
