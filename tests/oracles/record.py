"""Record the oracle's logits and tokens for the tiny models: tests/data/oracle_FAMILY.npz, about 0.3 MB in all.

    PYTHONPATH=tests .venv-oracles/bin/python -m oracles.record

Only needed again when tests/tiny changes which models there are; the files name the versions that made them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from oracles.huggingface import Oracle
from tiny.compare import margins
from tiny.models import FAMILIES, TinyModel, tiny_models
from tiny.recorded import GREEDY_PROMPT_TOKENS, GREEDY_TOKENS, PROMPT_TOKENS, ROWS, data_file
from tiny.tensors import digest, write_directory


def record(model: TinyModel, directory: Path) -> dict[str, np.ndarray]:
    oracle = Oracle(write_directory(model, directory))
    ids = model.prompt(PROMPT_TOKENS)
    start = ids[:GREEDY_PROMPT_TOKENS]
    greedy = oracle.greedy(start, GREEDY_TOKENS)
    rows_before_greedy = oracle.logits(start + greedy[:-1])[len(start) - 1 :]
    return {
        f"{model.name}/digest": np.array(digest(model)),
        f"{model.name}/logits": oracle.logits(ids)[list(ROWS)],
        f"{model.name}/greedy": np.array(greedy, np.int32),
        f"{model.name}/margin": margins(rows_before_greedy).astype(np.float32),
    }


def main() -> None:
    versions = np.array(f"transformers {transformers.__version__}, torch {torch.__version__}")
    for family in FAMILIES:
        arrays = {"made_with": versions}
        for model in tiny_models():
            if model.family == family:
                with tempfile.TemporaryDirectory() as directory:
                    arrays |= record(model, Path(directory))
        np.savez_compressed(data_file(family), **arrays)


if __name__ == "__main__":
    main()
