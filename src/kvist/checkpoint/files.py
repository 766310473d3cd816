"""What a checkpoint is to the rest of kvist: named tensors as bytes, and a config in Hugging Face's words.

A checkpoint is read only and lies in memory maps; nothing is copied or converted here. Two kinds of files
look the same from outside: ``gguf.GgufFile`` and ``safetensors.HuggingFaceDirectory``. Tensor names are those
of the file (``model.families`` knows which name means what), and so are the bytes: packed weights stay packed,
and rows stay in the order in which the file's maker wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from kvist.errors import CheckpointError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from kvist.checkpoint.codes import Codes, Floats, Rows

READABLE_TYPES = (
    "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq1_s",
    "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs", "tq1_0", "tq2_0", "mxfp4", "nvfp4",
)  # fmt: skip
"""Types whose bytes ``Checkpoint.raw`` gives out. Others are listed with name and size, and refused when read."""

COMPOSED_TYPES = (
    "int4", "int4_zero", "int8", "int8_zero", "int_reordered", "fp8", "mxfp4_pairs",
)  # fmt: skip
"""Types of matrices that a directory keeps in several tensors (``checkpoint.composed``), which have no bytes of their
own: 4- and 8-bit integers around 0, or with zero points (``_zero``), or whose scales aren't in the order of inputs."""

MAX_QUOTED_CHARACTERS = 100
MAX_NAMED = 5
"""Names that a message lists before it only counts."""


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as its file describes it.

    ``type`` is the lower-case name in GGML or safetensors (``q4_0``, ``bf16``, ``f8_e4m3``). ``shape`` is
    row-major as in NumPy, so a matrix is (outputs, inputs); ``num_bytes`` counts packed bytes without padding.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    num_bytes: int

    def __post_init__(self) -> None:
        if self.num_bytes < 0 or min(self.shape, default=0) < 0:
            raise CheckpointError(
                f"tensor {quote(self.name)} has a negative size: shape {self.shape}, {self.num_bytes} bytes"
            )


@dataclass(frozen=True)
class Composed:
    """A matrix by the tensors ``part_names``; ``info`` is what it looks like as one.

    ``floats`` decodes rows (of all but the last axis, flattened). ``codes`` does so in whole numbers, for the types
    that are made of such with a scale for each 32 inputs or more; the others have none.
    """

    info: TensorInfo
    part_names: tuple[str, ...]
    floats: Callable[[Rows], Floats]
    codes: Callable[[Rows], Codes] | None = None


class Checkpoint(Protocol):
    """An opened model: a GGUF file or a Hugging Face directory.

    ``config`` has the keys of Hugging Face's config.json, also for GGUF, and always ``model_type``; reading it
    raises UnsupportedError where a GGUF file's architecture isn't known. ``generation_config`` is ``{}`` where
    the model has none. ``metadata`` has the keys of a GGUF header as they are, and is empty for a directory.
    ``raw`` gives a tensor's bytes as a read-only view of the memory map (uint8, 1-d, its start not necessarily
    aligned) and raises CheckpointError for a name that isn't in the file and UnsupportedError for a type outside
    ``READABLE_TYPES``. Views outlive ``close``; nothing else does. ``composed`` has those of the tensors whose rows are
    put together from several of the file's; they have no ``raw``.
    """

    @property
    def path(self) -> Path: ...
    @property
    def format(self) -> Literal["gguf", "huggingface"]: ...
    @property
    def config(self) -> dict[str, object]: ...
    @property
    def generation_config(self) -> dict[str, object]: ...
    @property
    def metadata(self) -> Mapping[str, object]: ...
    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...
    @property
    def composed(self) -> Mapping[str, Composed]: ...
    def raw(self, name: str) -> npt.NDArray[np.uint8]: ...
    def close(self) -> None: ...


def find_tensor(checkpoint: Checkpoint, name: str) -> TensorInfo:
    """Return the tensor's description; raises CheckpointError if it is missing, UnsupportedError if unreadable."""
    info = checkpoint.tensors.get(name)
    if info is None:
        raise CheckpointError(
            f"{quote_path(checkpoint.path)} has no tensor {quote(name)}; "
            "it is incomplete, or of another kind than its config says"
        )
    if info.type not in READABLE_TYPES + COMPOSED_TYPES:
        raise UnsupportedError(
            f"tensor {quote(name)} of {quote_path(checkpoint.path)} has weight type {quote(info.type)}; "
            f"supported: {', '.join(READABLE_TYPES)}"
        )
    return info


def check_supported(checkpoint: Checkpoint, names: Iterable[str] | None = None) -> None:
    """Raise UnsupportedError unless the tensors ``names`` (default: all) are of a type that can be read.

    A Hugging Face checkpoint that says how it was quantised is refused by that name, which tells more than
    the integer types of its tensors, unless matrices were found in the way that it names.
    """
    quantization = checkpoint.config.get("quantization_config")
    if quantization and not checkpoint.composed:
        method = quantization.get("quant_method", "?") if isinstance(quantization, dict) else quantization
        raise UnsupportedError(
            f"{quote_path(checkpoint.path)} is quantised by {quote(method)}, which isn't read; take its unquantised "
            "weights, a GGUF file, or one quantised by GPTQ, AWQ, compressed-tensors or as fp8"
        )
    for name in checkpoint.tensors if names is None else names:
        find_tensor(checkpoint, name)


def quote(text: object, max_characters: int = MAX_QUOTED_CHARACTERS) -> str:
    """Return ``text`` in double quotes, fit for a one-line message whatever a file put into it.

    Characters that don't print (line breaks, control and direction characters, lone surrogates) become
    escapes, and long text is cut.
    """
    shown = str(text)
    if len(shown) > max_characters:
        shown = shown[: max_characters - 3] + "..."
    return '"' + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown) + '"'


def quote_path(path: Path) -> str:
    """Return ``path`` in quotes, whole."""
    return quote(path, max_characters=10_000)


def listed(names: Sequence[str]) -> str:
    """Return the first few names in quotes, and how many more there are."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(map(quote, names[:MAX_NAMED])) + more
