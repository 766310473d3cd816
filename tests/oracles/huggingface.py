"""The oracle: transformers' own model on a Hugging Face directory, float32, eager attention, one thread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

torch.set_num_threads(1)
logging.disable_progress_bar()


class Oracle:
    def __init__(self, path: Path, dtype: torch.dtype = torch.float32) -> None:
        model, report = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation="eager", output_loading_info=True, local_files_only=True
        )
        unread = {key: sorted(names) for key, names in report.items() if names}
        assert not unread, f"the oracle did not read {path} as it was written: {unread}"
        self.model = model.eval()

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int]) -> np.ndarray[Any, Any]:
        """[T, V]"""
        return np.asarray(self.model(torch.tensor([list(token_ids)]), use_cache=False).logits[0])

    @torch.inference_mode()
    def greedy(self, token_ids: Sequence[int], num_tokens: int) -> list[int]:
        """Return the tokens that the oracle's own loop gives; none ends it.

        Without its cache: transformers 5.24's cache for sliding windows keeps all tokens where the window is 1.
        """
        self.model.generation_config.eos_token_id = None
        ids = torch.tensor([list(token_ids)])
        settings = {"max_new_tokens": num_tokens, "do_sample": False, "pad_token_id": 0, "use_cache": False}
        out = self.model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        assert out.shape[1] == len(token_ids) + num_tokens, out.shape
        return [int(x) for x in out[0, len(token_ids) :]]
