"""The oracle's rotations fixed to a model's context, as kvist fixes them: transformers looks at a sequence's length."""

from __future__ import annotations

from pathlib import Path

import torch
from oracles.huggingface import Oracle
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


def fixed_oracle(path: Path) -> Oracle:
    """Return the oracle of a directory, whose longrope rotations all use their long factors if the model's context is
    longer than the original one."""
    oracle = Oracle(path)
    for module in oracle.model.modules():
        if getattr(module, "rope_type", None) != "longrope":
            continue
        context = module.config.max_position_embeddings
        is_long = context > module.config.rope_parameters["original_max_position_embeddings"]
        fixed, _ = ROPE_INIT_FUNCTIONS["longrope"](
            module.config, torch.device("cpu"), seq_len=context if is_long else None
        )
        module.inv_freq.copy_(fixed)
        module.original_inv_freq.copy_(fixed)
        module.long_inv_freq = fixed
    return oracle
