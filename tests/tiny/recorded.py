"""What the oracle said of the tiny models: ``oracles/record.py`` writes it to tests/data, tests compare with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tiny.models import TinyModel

Array = np.ndarray[Any, Any]

DATA = Path(__file__).parent.parent / "data"
PROMPT_TOKENS = 300
ROWS = (0, 1, 2, 15, 16, 17, 63, 127, 199, 255, 256, 299)  # positions whose logits are kept: around blocks and spans
GREEDY_PROMPT_TOKENS = 20
GREEDY_TOKENS = 64


@dataclass(frozen=True)
class Recorded:
    """``digest`` of config and weights; ``logits`` [len(ROWS), V] for the prompt; ``greedy`` tokens after its first
    tokens with the ``margin`` of each (see ``compare.margins``)."""

    digest: str
    logits: Array
    greedy: Array
    margin: Array


def data_file(family: str) -> Path:
    return DATA / f"oracle_{family}.npz"


def recorded(model: TinyModel) -> Recorded:
    with np.load(data_file(model.family), allow_pickle=False) as data:
        return Recorded(
            str(data[f"{model.name}/digest"]), *(data[f"{model.name}/{key}"] for key in ("logits", "greedy", "margin"))
        )
