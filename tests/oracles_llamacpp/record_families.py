"""Record llama.cpp's logits of a tiny model of each family that GGUF carries: tests/data/llamacpp_families.npz.

    PYTHONPATH=tests .venv-llamacpp/bin/python -m oracles_llamacpp.record_families

`test_families.py` beside this file compares more of them; tests/test_families_llamacpp.py reads what is recorded.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import llama_cpp
import numpy as np
from oracles_llamacpp.runtime import logits
from tiny.in_llamacpp import EXACT_GELUS, FILE, PROMPT_TOKENS, ROWS, recorded_cases
from tiny.tensors import digest


def main() -> None:
    arrays = {"made_with": np.array(f"llama_cpp_python {llama_cpp.__version__}")}
    for case in recorded_cases():
        model = case.model
        with tempfile.TemporaryDirectory() as directory:
            found = logits(case.file(Path(directory)), model.prompt(PROMPT_TOKENS), gelu=EXACT_GELUS.get(model.family))
        arrays |= {f"{model.name}/digest": np.array(digest(model)), f"{model.name}/logits": found[list(ROWS)]}
    np.savez_compressed(FILE, **arrays)


if __name__ == "__main__":
    main()
