"""Names at Hugging Face: ``hf:ORG/NAME`` (a directory of safetensors) and ``hf:ORG/NAME:FILE.gguf``.

The work is done by ``huggingface_hub``: its cache directory, its environment variables (HF_HOME, HF_TOKEN,
HF_HUB_OFFLINE), its progress display. What is in the cache works without a network. Only names that kvist reads are
fetched, never a pickle.
"""

from __future__ import annotations

import re
from pathlib import Path

from kvist.checkpoint.files import quote
from kvist.checkpoint.gguf_split import split_name
from kvist.errors import CheckpointError

HUB_PREFIX = "hf:"
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_NAME = re.compile(rf"hf:({_PART}/{_PART})(?::((?:{_PART}/)*{_PART}))?")
_WANTED = ("*.json", "*.safetensors", "*.jinja", "merges.txt", "tokenizer.model")
_UNWANTED = ("*/*", "consolidated*")


def fetch(name: str) -> Path:
    """Return the local path of a ``hf:`` name, downloading what isn't in the cache.

    Raises CheckpointError where the name is malformed, huggingface_hub is missing, or the model can't be had.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise CheckpointError(f"not a name at Hugging Face: {quote(name)}; write hf:ORG/NAME or hf:ORG/NAME:FILE.gguf")
    repository, file = match.groups()
    if file is not None and not file.endswith(".gguf"):
        raise CheckpointError(
            f"{quote(name)} names {quote(file)}; only .gguf files are named, a safetensors model is hf:{repository}"
        )
    split = None if file is None else split_name(file)
    try:
        # Here and not above: it takes a third of a second to import, and most starts don't need it.
        import huggingface_hub  # noqa: PLC0415
    except ImportError:
        raise CheckpointError(
            f"{quote(name)} needs the package huggingface_hub; install it with: pip install huggingface_hub"
        ) from None
    try:
        if file is not None:
            for part in split.names() if split else ():
                huggingface_hub.hf_hub_download(repository, part)
            return Path(huggingface_hub.hf_hub_download(repository, file))
        return Path(
            huggingface_hub.snapshot_download(repository, allow_patterns=list(_WANTED), ignore_patterns=list(_UNWANTED))
        )
    except Exception as error:  # noqa: BLE001 - whatever its version, its HTTP client and the network come up with
        why = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(
            f"can't get {quote(name)} from Hugging Face: {quote(why, 200)[1:-1]}; "
            "check the name and the network, or give a local path"
        ) from None
