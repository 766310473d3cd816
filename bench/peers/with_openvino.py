"""OpenVINO GenAI's continuous batching with prefix caching, from a GGUF file or an OpenVINO directory."""

from __future__ import annotations

import importlib.metadata

import numpy as np
import openvino as ov
import openvino_genai as genai
from peer import Engine, Prompts, main


class OpenVino:
    name = "OpenVINO GenAI"
    version = importlib.metadata.version("openvino-genai")
    weights = "as it reads the file"

    def __init__(self, model: str, threads: int, kv: str) -> None:
        self.kv = kv
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.cache_size = 2  # GiB
        scheduler.max_num_batched_tokens = 2_048
        options = {"INFERENCE_NUM_THREADS": threads, "KV_CACHE_PRECISION": kv, "SCHEDULER_CONFIG": scheduler}
        self.pipe = genai.LLMPipeline(model, "CPU", scheduler_config=scheduler, **{
            key: value for key, value in options.items() if key != "SCHEDULER_CONFIG"
        })

    def generate(self, prompts: Prompts, num_tokens: int) -> list[list[int]]:
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = num_tokens
        config.ignore_eos, config.do_sample = True, False
        ids = np.array([list(prompt) for prompt in prompts], np.int64)
        inputs = genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
        return [list(tokens) for tokens in self.pipe.generate(inputs, config).tokens]


def load(model: str, threads: int, _context: int) -> Engine:
    return OpenVino(model, threads, "f16")


main(load)
