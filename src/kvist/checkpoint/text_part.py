"""The text model of a directory that holds more: of a model that also reads images, seen as if it stood alone.

Its config.json keeps the text model's keys in a part of their own, and leaves out what the reference implementation's
config class assumes; its tensors have a prefix, one of two generations of transformers. Tokens of text stand at plain
positions in all of ``WRAPPERS``: where positions have several axes (``mrope``), text has the same number on each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from kvist.checkpoint.files import Checkpoint, Composed, TensorInfo, find_tensor
from kvist.spec.config import text_part
from kvist.spec.model_types import ALIASES, class_defaults

_QWEN_VL: Mapping[str, object] = {"rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0, "max_window_layers": 80}

WRAPPERS: Mapping[str, Mapping[str, object]] = {
    "gemma3": {},
    "idefics3": {},
    "internvl": {},
    "llava": {},
    "llava_next": {},
    "llava_next_video": {},
    "llava_onevision": {},
    "mistral3": {},
    "qwen2_5_vl": _QWEN_VL,
    "qwen2_vl": _QWEN_VL,
    "qwen3_vl": {"rope_theta": 500_000.0, "max_position_embeddings": 128_000},
    "smolvlm": {},
    "video_llava": {},
    "vipllava": {},
}
"""By ``model_type``: what their text model's config class assumes otherwise than the text family's own."""

_LAYOUTS: tuple[Mapping[str, str], ...] = (
    {"model.language_model.": "model.", "lm_head.": "lm_head."},  # transformers 5
    {"language_model.model.": "model.", "language_model.lm_head.": "lm_head.", "lm_head.": "lm_head."},  # 4
    {"model.text_model.": "model.", "lm_head.": "lm_head."},  # smolvlm, idefics3
    {"model.": "model.", "lm_head.": "lm_head."},  # qwen2_vl in 4: what reads images is in "visual."
)
"""How names begin, and what that is in the text model alone; the first whose first beginning is there counts."""

_OUTPUT = "lm_head.weight"


class TextPart:
    """A checkpoint of ``text``'s config and of those tensors of ``whole`` that are ``named``: by plain name, its own.

    Closing it closes the whole one.
    """

    metadata: Mapping[str, object]

    def __init__(self, whole: Checkpoint, config: dict[str, object], named: Mapping[str, str]) -> None:
        self._whole, self._named = whole, named
        self.config = config
        self.metadata = whole.metadata
        self.tensors: Mapping[str, TensorInfo] = {
            plain: replace(whole.tensors[name], name=plain) for plain, name in named.items()
        }
        self.composed: Mapping[str, Composed] = {
            plain: replace(whole.composed[name], info=self.tensors[plain])
            for plain, name in named.items()
            if name in whole.composed
        }

    @property
    def path(self) -> Path:
        return self._whole.path

    @property
    def format(self) -> Literal["gguf", "huggingface"]:
        return self._whole.format

    @property
    def generation_config(self) -> dict[str, object]:
        return self._whole.generation_config

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        return self._whole.raw(self._named[find_tensor(self, name).name])

    def close(self) -> None:
        self._whole.close()


def text_only(checkpoint: Checkpoint) -> Checkpoint:
    """Return the text model of one of ``WRAPPERS``; any other checkpoint as it is."""
    if str(checkpoint.config.get("model_type")) not in WRAPPERS:
        return checkpoint
    named = _names(checkpoint.tensors)
    return TextPart(checkpoint, text_config(checkpoint.config, has_output=_OUTPUT in named), named)


def text_config(config: Mapping[str, object], *, has_output: bool) -> dict[str, object]:
    """Return the config of a wrapper's text model, as it would stand alone, what its class assumes included.

    ``has_output``: the weights have an output matrix; without one it is tied wherever that is said.
    """
    name, text = text_part(config)
    family = ALIASES.get(name, name)
    defaults = {**class_defaults().get(family, {}), **WRAPPERS[str(config["model_type"])]}
    if text is config:  # keys of the text model and of the whole stand together, sizes included
        defaults = dict(WRAPPERS[str(config["model_type"])])
    common = ("bos_token_id", "eos_token_id", "pad_token_id", "quantization_config")
    found = {**defaults, **{key: config[key] for key in common if key in config}, **text, "model_type": family}
    found |= {key: _plain_rope(found[key]) for key in ("rope_scaling", "rope_parameters") if key in found}
    said = [source["tie_word_embeddings"] for source in (config, text, defaults) if "tie_word_embeddings" in source]
    found["tie_word_embeddings"] = next(iter(said), False) if has_output else any(said)
    return found


def _names(names: Mapping[str, TensorInfo]) -> dict[str, str]:
    """The text model's tensors: plain name to the file's."""
    for layout in _LAYOUTS:
        if any(name.startswith(next(iter(layout))) for name in names):
            return {
                plain + name.removeprefix(start): name
                for name in names
                for start, plain in layout.items()
                if name.startswith(start)
            }
    return {}


def _plain_rope(rope: object) -> object:
    """Rope settings for positions of one axis."""
    if not isinstance(rope, Mapping):
        return rope
    return {key: "default" if value == "mrope" else value for key, value in rope.items()}
