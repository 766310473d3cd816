"""Record the oracle's logits and tokens for the tiny models with experts: tests/data/oracle_FAMILY.npz.

    PYTHONPATH=tests .venv-oracles/bin/python -m oracles.record_experts [FAMILY ...]

Only needed again when ``tiny.experts`` changes which models there are.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from oracles.record import record
from tiny.experts import EXPERT_FAMILIES, expert_models
from tiny.recorded import data_file


def main() -> None:
    versions = np.array(f"transformers {transformers.__version__}, torch {torch.__version__}")
    for family in sys.argv[1:] or EXPERT_FAMILIES:
        arrays = {"made_with": versions}
        for model in expert_models():
            if model.family == family:
                with tempfile.TemporaryDirectory() as directory:
                    arrays |= record(model, Path(directory))
        np.savez_compressed(data_file(family), **arrays)


if __name__ == "__main__":
    main()
