"""What the oracle said of the tiny models with latent attention: ``oracles/record_latent.py`` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tiny.deepseek import FAMILIES, NUM_RECORDED, deepseek_model
from tiny.models import TinyModel

Array = np.ndarray[Any, Any]
FILE = Path(__file__).parent.parent / "data" / "oracle_latent.npz"
PROMPT_TOKENS = 280
ROWS = (0, 1, 15, 16, 17, 100, 255, 256, 279)  # positions whose logits are kept: around blocks and spans
MODELS = [deepseek_model(family, number) for family in FAMILIES for number in range(NUM_RECORDED)]


def recorded_logits(model: TinyModel) -> tuple[str, Array]:
    """A digest of the model's config and weights, and logits [len(ROWS), V]."""
    with np.load(FILE, allow_pickle=False) as data:
        return str(data[f"{model.name}/digest"]), data[f"{model.name}/logits"]
