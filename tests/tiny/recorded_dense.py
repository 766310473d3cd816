"""What the oracle said of one tiny model of each dense family, and of rope scalings: tests/data/oracle_dense.npz."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiny.dense import DENSE, ORIGINAL, ROPES, dense_model
from tiny.models import CONTEXT, TinyModel
from tiny.recorded import DATA

Array = np.ndarray[Any, Any]

FILE = DATA / "oracle_dense.npz"
PROMPT_TOKENS = 270
ROWS = (0, 1, 17, 100, 256, 269)

LONG = {"rope_type": "longrope", "long_factor": [1 + 0.7 * i for i in range(16)], "short_factor": [1.0] * 16}
ROTATIONS: dict[str, dict[str, Any]] = {
    **{name: {"rope_parameters": {"rope_theta": 10_000.0, **rope}} for name, rope in ROPES.items()},
    "longrope": {"rope_parameters": {"rope_theta": 10_000.0, **LONG, "original_max_position_embeddings": ORIGINAL}},
    "longrope within": {
        "rope_parameters": {"rope_theta": 10_000.0, **LONG, "original_max_position_embeddings": CONTEXT}
    },
}
"""Configs of rotations, of heads of width 32."""


def recorded_models() -> list[TinyModel]:
    return [dense_model(family, 0) for family in DENSE]


def recorded_logits(model: TinyModel) -> tuple[str, Array]:
    """The digest of the model that was recorded, and its logits [len(ROWS), V]."""
    with np.load(FILE, allow_pickle=False) as data:
        return str(data[f"{model.name}/digest"]), data[f"{model.name}/logits"]


def recorded_rotation(name: str) -> tuple[Array, float]:
    """Radians a token for each pair of dims, and what cosines are multiplied with."""
    with np.load(FILE, allow_pickle=False) as data:
        return data[f"rope {name}/frequencies"], float(data[f"rope {name}/factor"])
