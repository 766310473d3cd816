"""Record the oracle's logits for the tiny models with latent attention: tests/data/oracle_latent.npz.

    PYTHONPATH=tests .venv-oracles/bin/python -m oracles.record_latent

Only needed again when tests/tiny/deepseek.py changes which models there are.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from oracles.huggingface import Oracle
from tiny.latent_recorded import FILE, MODELS, PROMPT_TOKENS, ROWS
from tiny.tensors import digest, write_directory


def main() -> None:
    arrays = {"made_with": np.array(f"transformers {transformers.__version__}, torch {torch.__version__}")}
    for model in MODELS:
        with tempfile.TemporaryDirectory() as directory:
            logits = Oracle(write_directory(model, Path(directory))).logits(model.prompt(PROMPT_TOKENS))
        arrays |= {f"{model.name}/digest": np.array(digest(model)), f"{model.name}/logits": logits[list(ROWS)]}
    np.savez_compressed(FILE, **arrays)


if __name__ == "__main__":
    main()
