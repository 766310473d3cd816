"""Make an environment for each peer and write down how long that took; then convert the weights for those that need it.

    python bench/peers/install.py                  what `make peers` runs
    python bench/peers/install.py "vLLM bf16"      one peer

A peer that can't be installed is told with pip's last line and doesn't stop the others. Environments that are complete
are left alone. Needs the standard library only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from roster import KVIST, MODELS, ROOT, packaged_gguf, roster

PIP = ("-m", "pip", "--disable-pip-version-check")


@dataclass(frozen=True)
class Export:
    """A conversion: the environment that has its tools, and what it starts from besides the file."""

    environment: str
    install: tuple[str, ...]
    needs: tuple[str, ...] = ()


EXPORTS = {
    "hf": Export(".venv-peer-transformers", ("torch==2.13.0", "transformers>=5 gguf>=0.17 accelerate")),
    "q4_0.gguf": Export(".venv-peer-llamacpp", ("llama-cpp-python>=0.3.16",)),
    "onnx": Export(
        ".venv-peer-export-onnx",
        ("torch==2.13.0", "transformers>=5 onnx-ir onnxruntime onnxruntime-genai"),
        ("hf",),
    ),
    "openvino": Export(
        ".venv-peer-export-openvino", ("torch", "optimum-intel nncf openvino openvino-tokenizers"), ("hf",)
    ),
}


def make(environment: str, install: Sequence[str], remove: Sequence[str] = ()) -> str:
    """Make one environment unless it is complete; return what went wrong, or nothing."""
    root = ROOT / environment
    if (root / "peer.json").exists():
        return ""
    print(f"{environment}: {', '.join(install)}", flush=True)
    start = time.perf_counter()
    python = str(root / "bin" / "python")
    steps = [
        [sys.executable, str(ROOT / "tools" / "make_venv.py"), str(root)],
        *([python, *PIP, "install", "--quiet", "--no-compile", *one.split()] for one in install),
        *([python, *PIP, "uninstall", "--quiet", "--yes", one] for one in remove),
    ]
    for step in steps:
        done = subprocess.run(step, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            shutil.rmtree(root, ignore_errors=True)
            return (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
    seconds = time.perf_counter() - start
    (root / "peer.json").write_text(json.dumps({"seconds": round(seconds, 1)}) + "\n", encoding="utf-8")
    return ""


def export(kind: str, gguf: Path) -> str:
    """Convert the weights to what a peer takes unless that is there; return what went wrong, or nothing."""
    if (MODELS / kind).exists():
        return ""
    MODELS.mkdir(parents=True, exist_ok=True)
    how = EXPORTS[kind]
    for needed in how.needs:
        error = export(needed, gguf)
        if error:
            return error
    error = make(how.environment, how.install)
    if error:
        return error
    print(f"build/peers/{kind}", flush=True)
    python, script = ROOT / how.environment / "bin" / "python", Path(__file__).with_name("export.py")
    asked = [str(python), str(script), kind, str(gguf), str(MODELS)]
    done = subprocess.run(asked, env=os.environ | {"HF_HUB_OFFLINE": "1"}, check=False)
    return f"export.py {kind} ended with {done.returncode}" if done.returncode else ""


def main(wanted: list[str]) -> None:
    known = roster()
    for name in wanted:
        if name not in known:
            raise SystemExit(f"unknown peer {name!r}; known: {', '.join(known)}")
    for name in [KVIST, *(name for name in wanted or known if name != KVIST)]:
        peer = known[name]
        environment = ".venv-peer-kvist" if name == KVIST else peer.environment
        error = make(environment, peer.install, peer.remove)
        if not error and peer.model.parent == MODELS:
            error = export(peer.model.name, packaged_gguf())
        if error:
            print(f"{name} can't be had here: {error}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
