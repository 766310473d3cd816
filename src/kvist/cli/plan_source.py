"""What a plan is about: from the name that a user types to a ModelSpec, reading as little as possible.

A config.json (under any name ending in .json) or a directory with one needs neither NumPy nor weights. Where there are
weights, they are counted from their headers. Of a name at Hugging Face only the config is fetched.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvist.checkpoint.disk import exists
from kvist.errors import CheckpointError, SpecError, UnsupportedError
from kvist.spec.config import model_spec_from_config
from kvist.spec.model import ModelSpec
from kvist.spec.parameters import Parameters

if TYPE_CHECKING:
    from kvist.checkpoint.files import Checkpoint, TensorInfo

HUB_PREFIX = "hf:"
_WEIGHT_TYPES = {
    "f32": "f32",
    "f16": "f16",
    "bf16": "bf16",
    "q8_0": "q8",
    "q4_0": "q4",
    "q4_1": "q4",
    "f8_e4m3": "fp8",
    "i32": "int4",
    "i8": "int8",
}
"""The planner's names for the types of tensors, by the type that most bytes are in."""

_CONFIG = "config.json"
_EMBEDDINGS = ("embed_tokens.weight", "token_embd.weight", "wte.weight", "word_embeddings.weight")
_OUTPUTS = ("lm_head.weight", "output.weight", "embed_out.weight")


@dataclass(frozen=True)
class Source:
    """A model to plan for, and the bytes of its weights where their files are there."""

    spec: ModelSpec
    weights_bytes: int | None = None


def read_source(name: str) -> Source:
    """Return the model that ``name`` stands for.

    Raises:
        CheckpointError: there is nothing of that name, or it can't be read.
        SpecError: its config doesn't suffice.
    """
    path = Path(name)
    if name.startswith(HUB_PREFIX) and name.count(":") == 1:
        return _from_config(_hub_config(name.removeprefix(HUB_PREFIX)), name.rsplit("/", 1)[-1])
    is_there = exists(path)  # a path may be too long to be asked for more
    if path.suffix == ".json" and not (is_there and path.is_dir()):
        return _from_config(path, path.parent.resolve().name if path.name == _CONFIG else path.stem)
    if is_there and (path / _CONFIG).is_file() and not any(path.glob("*.safetensors")):
        return _from_config(path / _CONFIG, path.resolve().name)
    return _from_files(name)


def _from_config(path: Path, name: str) -> Source:
    from kvist.checkpoint.json_object import read_json_object

    try:
        return Source(replace(model_spec_from_config(read_json_object(path)), name=name))
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None


def _hub_config(repository: str) -> Path:
    """Return the local copy of a repository's config.json, fetching it if need be."""
    try:
        import huggingface_hub
    except ImportError:
        raise CheckpointError(
            f'"{HUB_PREFIX}{repository}" needs the package huggingface_hub; get it with: pip install huggingface_hub'
        ) from None
    try:
        return Path(huggingface_hub.hf_hub_download(repository, _CONFIG))
    except Exception as error:  # noqa: BLE001 - whatever its version, its HTTP client and the network come up with
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise CheckpointError(
            f'can\'t get the config of "{repository}" from Hugging Face: {reason}; check the name and the network, '
            "or give a local path"
        ) from None


def _from_files(name: str) -> Source:
    """Read a GGUF file or a directory of safetensors: the config, and the weights' headers."""
    from kvist.checkpoint.catalog import find_model, open_checkpoint

    checkpoint = open_checkpoint(name)
    try:
        spec = replace(model_spec_from_config(_config(checkpoint)), name=_file_name(name, find_model(name)))
        sizes: Counter[str] = Counter()
        for tensor in checkpoint.tensors.values():
            sizes[tensor.type] += tensor.num_bytes
        most = sizes.most_common(1)[0][0] if sizes else ""
        counted = replace(_counted(spec, checkpoint), weight_type=_WEIGHT_TYPES.get(most, spec.weight_type))
        return Source(counted, sizes.total())
    finally:
        checkpoint.close()


def _config(checkpoint: Checkpoint) -> Mapping[str, object]:
    """Return the config, also of a GGUF file that the engine doesn't run."""
    from kvist.cli.plan_gguf import config_from_header

    try:
        return checkpoint.config
    except UnsupportedError:
        if checkpoint.format != "gguf":
            raise
        return config_from_header(checkpoint.metadata)


def _file_name(name: str, path: Path) -> str:
    return name if name != str(path) else path.name.removesuffix(".gguf")


def _counted(spec: ModelSpec, checkpoint: Checkpoint) -> ModelSpec:
    """Return ``spec`` with the parameters that the files hold; where the config said another number, a note."""
    tensors = checkpoint.tensors
    total = sum(_count(tensor) for tensor in tensors.values())
    known = spec.parameters
    if known is not None and known.total == total:
        return spec
    embedding, output = _named(tensors, _EMBEDDINGS), _named(tensors, _OUTPUTS)
    experts = sum(_count(tensor) for name, tensor in tensors.items() if _is_routed(name))
    shares = (known.num_experts, known.experts_per_token) if known and known.experts else (1, 1)
    body = total - embedding - output - experts
    notes = spec.notes
    if known is not None:
        notes += (f"the files hold {total:,} parameters, by the config they would be {known.total:,}",)
    return replace(spec, parameters=Parameters(embedding, output, body, experts, *shares), missing="", notes=notes)


def _count(tensor: TensorInfo) -> int:
    return math.prod(tensor.shape)


def _named(tensors: Mapping[str, TensorInfo], endings: tuple[str, ...]) -> int:
    return sum(_count(tensor) for name, tensor in tensors.items() if name.endswith(endings) and "blk." not in name)


def _is_routed(name: str) -> bool:
    return ".experts." in name or "_exps." in name
