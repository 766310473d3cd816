"""Record the oracle's logits of the dense families, and its rope scalings: tests/data/oracle_dense.npz, about 60 kB.

    PYTHONPATH=tests .venv-oracles/bin/python -m oracles.record_dense

Only needed again when tests/tiny/dense.py changes which models there are; the file names the versions that made it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from oracles.fixed_rope import fixed_oracle
from tiny.models import CONTEXT, TinyModel
from tiny.recorded_dense import FILE, PROMPT_TOKENS, ROTATIONS, ROWS, recorded_models
from tiny.tensors import digest, write_directory
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


def record(model: TinyModel, directory: Path) -> dict[str, np.ndarray[Any, Any]]:
    logits = fixed_oracle(write_directory(model, directory)).logits(model.prompt(PROMPT_TOKENS))[list(ROWS)]
    return {f"{model.name}/digest": np.array(digest(model)), f"{model.name}/logits": logits}


def rotation(name: str) -> tuple[np.ndarray[Any, Any], float]:
    """What transformers computes for a rotation at the model's context."""
    config = LlamaConfig(head_dim=32, max_position_embeddings=CONTEXT, **ROTATIONS[name])
    kind = config.rope_parameters["rope_type"]
    found, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=CONTEXT)
    return found.numpy(), float(factor)


def main() -> None:
    arrays = {"made_with": np.array(f"transformers {transformers.__version__}, torch {torch.__version__}")}
    for model in recorded_models():
        with tempfile.TemporaryDirectory() as directory:
            arrays |= record(model, Path(directory))
    for name in ROTATIONS:
        frequencies, factor = rotation(name)
        arrays |= {f"rope {name}/frequencies": frequencies, f"rope {name}/factor": np.array(factor)}
    np.savez_compressed(FILE, **arrays)


if __name__ == "__main__":
    main()
