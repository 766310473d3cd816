"""OpenVINO GenAI's continuous batching with prefix caching, from a GGUF file or an OpenVINO directory."""

from __future__ import annotations

import importlib.metadata
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as genai
from peer import MOST_USERS, Asked, Engine, TokenIds, serve

BLOCK = 32
"""Tokens of a block of its cache on a CPU."""


class OpenVino:
    name = "OpenVINO GenAI"
    version = importlib.metadata.version("openvino-genai")

    def __init__(self, asked: Asked) -> None:
        self.kv = "f16" if asked.kv == "default" else asked.kv
        self.weights = "Q4_1, as in the file" if Path(asked.model).suffix == ".gguf" else "int4 in groups of 64"
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.num_kv_blocks = 2 * asked.context // BLOCK + 64
        scheduler.max_num_seqs = MOST_USERS
        scheduler.max_num_batched_tokens = 2_048
        properties = {"INFERENCE_NUM_THREADS": asked.threads, "KV_CACHE_PRECISION": self.kv}
        self.pipe = genai.ContinuousBatchingPipeline(asked.model, scheduler, "CPU", properties)
        self._ids = itertools.count()
        self._num_blocks = scheduler.num_kv_blocks

    @property
    def kv_bytes(self) -> float:
        """What the pipeline says that its blocks take, which it makes when they are needed first."""
        if not self.pipe.get_metrics().cache_size_in_bytes:
            list(self.stream([1_000] * 8, 1))
        return self.pipe.get_metrics().cache_size_in_bytes / (self._num_blocks * BLOCK)

    def stream(self, prompt: TokenIds, num_tokens: int) -> Iterator[int]:
        handle = self._add(prompt, num_tokens)
        while self.pipe.has_non_finished_requests():
            self.pipe.step()
            while handle.can_read():
                for output in handle.read().values():
                    yield from output.generated_ids

    def generate(self, prompts: Sequence[TokenIds], num_tokens: int) -> list[TokenIds]:
        handles = [self._add(prompt, num_tokens) for prompt in prompts]
        while self.pipe.has_non_finished_requests():
            self.pipe.step()
        return [list(handle.read_all()[0].generated_ids) for handle in handles]

    def _add(self, prompt: TokenIds, num_tokens: int) -> genai.GenerationHandle:
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = num_tokens
        config.ignore_eos, config.do_sample = True, False
        return self.pipe.add_request(next(self._ids), ov.Tensor(np.array([prompt], np.int64)), config)


def load(asked: Asked) -> Engine:
    return OpenVino(asked)


if __name__ == "__main__":
    serve(load)
