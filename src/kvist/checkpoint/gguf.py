"""A model in GGUF: one file, or several that it was split over.

Three things about tensors that a reader of weights must know, and that are kept as the files have them: names are
GGUF's (``blk.0.attn_q.weight``); for architecture ``llama`` (Mistral too) the rows of attn_q and attn_k are permuted
so that rotary pairs are neighbours; and Llama 3's rope scaling is a tensor of factors, ``rope_freqs.weight``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from kvist.checkpoint.files import Composed, TensorInfo, find_tensor, quote_path
from kvist.checkpoint.gguf_config import config_from_gguf, generation_config_from_gguf
from kvist.checkpoint.gguf_part import GgufPart
from kvist.checkpoint.gguf_split import joined, open_parts
from kvist.errors import CheckpointError

MAX_ROPE_FACTORS_BYTES = 1 << 16
_ROPE_FACTORS = "rope_freqs.weight"
_LONG_FACTORS, _SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"


class GgufFile:
    """A model's file, or its files by the name of any, as a ``Checkpoint``; ``metadata`` is the first one's.

    Raises CheckpointError where a file is missing, damaged, no GGUF file or no part of the others' model,
    UnsupportedError where one is of a version or byte order that isn't read.
    """

    format: Literal["gguf"] = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parts = open_parts(path)
        try:
            self._places: Mapping[str, GgufPart] = joined(path, self._parts)
        except CheckpointError:
            self.close()
            raise
        self.metadata = self._parts[0].metadata
        self.tensors: Mapping[str, TensorInfo] = {name: part.tensors[name] for name, part in self._places.items()}

    @cached_property
    def config(self) -> dict[str, object]:
        """What the model's config.json would hold; see ``gguf_config``."""
        try:
            return config_from_gguf(
                self.metadata,
                self.tensors,
                rope_factors=self._factors(_ROPE_FACTORS),
                long_factors=self._long_factors(),
            )
        except CheckpointError as error:
            raise type(error)(f"{quote_path(self.path)}: {error}") from None

    @cached_property
    def generation_config(self) -> dict[str, object]:
        """Sampling settings and end tokens that the file recommends; ``{}`` if it has none."""
        try:
            return generation_config_from_gguf(self.metadata)
        except CheckpointError as error:
            raise type(error)(f"{quote_path(self.path)}: {error}") from None

    def _long_factors(self) -> tuple[list[float], list[float]] | None:
        """Return the long and the short divisors that a Phi-3 file may have, None in other files."""
        long, short = self._factors(_LONG_FACTORS), self._factors(_SHORT_FACTORS)
        return None if long is None or short is None else (long, short)

    def _factors(self, name: str) -> list[float] | None:
        """Return divisors of the rotary frequencies that a file has as a tensor, None where it has none."""
        info = self.tensors.get(name)
        if info is None:
            return None
        if info.type != "f32" or info.num_bytes > MAX_ROPE_FACTORS_BYTES:
            raise CheckpointError(f"{name} must hold a few f32, got {info.num_bytes} bytes of {info.type}")
        factors: list[float] = self.raw(name).view("<f4").tolist()
        return factors

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        info = find_tensor(self, name)
        return self._places[info.name].raw(info.name)

    @property
    def composed(self) -> Mapping[str, Composed]:
        """None: every tensor of a GGUF file has its bytes in one place."""
        return {}

    def close(self) -> None:
        for part in self._parts:
            part.close()
