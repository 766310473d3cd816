"""SmolLM2 requantised by llama.cpp, and what a text costs each of two programs, token by token.

    PYTHONPATH=tests .venv-llamacpp/bin/python -m oracles_llamacpp.perplexity

records llama.cpp's perplexities anew, of the token ids that are recorded: tests/data/llamacpp_perplexity.json.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from oracles_llamacpp.record_tokens import smollm2_path
from oracles_llamacpp.runtime import logits, quantise
from tiny.recorded import DATA
from tiny.surprise import surprises

Array = np.ndarray[Any, Any]

FILE = DATA / "llamacpp_perplexity.json"
FTYPES = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS"),
    *("IQ3_XXS", "IQ3_S", "TQ2_0", "F16", "BF16"),
)
"""One of those that differ in nothing but how many matrices are of which type; others need weights of inputs."""


def llamacpp_surprises(ftype: str, token_ids: list[int]) -> tuple[Array, Path]:
    """Nats for each token but the first, and the file; the caller removes its directory."""
    directory = Path(tempfile.mkdtemp())
    path = quantise(smollm2_path(), directory / f"smollm2-{ftype}.gguf", ftype)
    return surprises(logits(path, token_ids, has_vocabulary=True), token_ids), path


def main() -> None:
    recorded = json.loads(FILE.read_text())
    recorded["llama_cpp_python"] = llama_cpp.__version__
    for ftype in FTYPES:
        found, path = llamacpp_surprises(ftype, recorded["token_ids"])
        recorded["perplexity"][ftype] = round(float(np.exp(found.mean())), 4)
        path.unlink()
        path.parent.rmdir()
    FILE.write_text(json.dumps(recorded, separators=(",", ":")).replace('"perplexity"', '\n"perplexity"') + "\n")


if __name__ == "__main__":
    main()
