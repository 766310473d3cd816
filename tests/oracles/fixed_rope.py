"""The oracle's rotations fixed to a context, as kvist fixes them: transformers looks at a sequence's length."""

from __future__ import annotations

from pathlib import Path

import torch
from oracles.huggingface import Oracle
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


def fixed_oracle(path: Path, context: int | None = None) -> Oracle:
    """Return the oracle of a directory, all of whose dynamic and longrope rotations are those of a sequence of
    ``context`` tokens, None: of the model's own context."""
    oracle = Oracle(path)
    for module in oracle.model.modules():
        kind = getattr(module, "rope_type", None)
        if kind not in ("dynamic", "longrope"):
            continue
        length = context or module.config.max_position_embeddings
        fixed, _ = ROPE_INIT_FUNCTIONS[kind](module.config, torch.device("cpu"), seq_len=length)
        module.inv_freq.copy_(fixed)
        module.original_inv_freq.copy_(fixed)
        module.long_inv_freq = fixed  # which longrope takes for a sequence beyond the original context
        module.max_seq_len_cached = max(length, module.max_seq_len_cached)  # dynamic makes others for a longer one
    return oracle
