"""Convert a GGUF file's weights to what a peer takes; run by ``install.py`` with the environment that has the tools.

    python export.py KIND GGUF DIRECTORY

``hf``: a Hugging Face directory in bf16, by transformers' own reader. ``q4_0.gguf``: what llama.cpp is fastest with, by
its own quantiser. ``onnx`` and ``openvino``: int4, by onnxruntime-genai's builder and by Optimum, from ``hf``. Whatever
starts from ``hf`` quantises what had been quantised: right for speed, not for a comparison of quality.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def to_hf(gguf: Path, models: Path) -> None:
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    more = {"gguf_file": gguf.name, "quantization_config": transformers.GgufConfig(dequantize=True)}
    model = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.bfloat16, **more)
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model.save_pretrained(models / "hf")
    tokenizer.save_pretrained(models / "hf")


def to_q4_0(gguf: Path, models: Path) -> None:
    ll = importlib.import_module("llama_cpp")
    params = ll.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = ll.LLAMA_FTYPE_MOSTLY_Q4_0, True, 2
    made = str(models / "q4_0.gguf").encode()
    code = ll.llama_model_quantize(str(gguf).encode(), made, params)
    assert code == 0, f"llama_model_quantize returned {code}"


def to_onnx(_gguf: Path, models: Path) -> None:
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(models / "hf")]
    options = ["accuracy_level=4", "block_size=32", "shared_embeddings=true", "prune_lm_head=true"]
    into = ["-o", str(models / "onnx"), "-p", "int4", "-e", "cpu", "-c", str(models / "cache")]
    subprocess.run([*builder, *into, "--extra_options", *options], check=True)
    shutil.rmtree(models / "cache", ignore_errors=True)


def to_openvino(_gguf: Path, models: Path) -> None:
    cli = Path(sys.executable).with_name("optimum-cli")
    options = ["--task", "text-generation-with-past", "--weight-format", "int4", "--group-size", "64", "--ratio", "1.0"]
    subprocess.run([cli, "export", "openvino", "--model", models / "hf", *options, models / "openvino"], check=True)


KINDS: dict[str, Callable[[Path, Path], None]] = {
    "hf": to_hf,
    "q4_0.gguf": to_q4_0,
    "onnx": to_onnx,
    "openvino": to_openvino,
}

if __name__ == "__main__":
    kind, file, directory = sys.argv[1:]
    KINDS[kind](Path(file), Path(directory))
