"""A model's own sampling settings, from its generation_config, as transformers reads them.

Without ``do_sample`` the choice is greedy whatever else the file says. Keys of methods that kvist doesn't have (beam
search and the like) are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvist.engine.request import SamplingParams
from kvist.errors import CheckpointError, RequestError

_SAMPLING_KEYS = ("temperature", "top_k", "top_p", "min_p")


def default_params(generation_config: Mapping[str, object]) -> SamplingParams:
    """Return the settings that ``generation_config`` asks for; greedy where it asks for none.

    Raises:
        CheckpointError: a value isn't a number, or is out of its range.
    """
    keys = ["repetition_penalty"]
    if generation_config.get("do_sample") is True:
        keys += _SAMPLING_KEYS
    settings: dict[str, Any] = {key: generation_config[key] for key in keys if generation_config.get(key) is not None}
    for key, value in settings.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or (key == "top_k" and isinstance(value, float) and not value.is_integer()):
            raise CheckpointError(f"{key} in the model's generation_config must be a number, got {value!r:.60}")
    if len(keys) > 1:
        settings.setdefault("temperature", 1.0)
    if "top_k" in settings:
        settings["top_k"] = int(settings["top_k"])
    try:
        return SamplingParams(**settings)
    except RequestError as error:
        raise CheckpointError(f"in the model's generation_config, {error}") from None


def end_token_ids(generation_config: Mapping[str, object]) -> frozenset[int]:
    """Return the ids that ``eos_token_id`` names: a number, a list of numbers, or nothing."""
    found = generation_config.get("eos_token_id")
    listed = found if isinstance(found, list) else [found]
    return frozenset(n for n in listed if isinstance(n, int) and not isinstance(n, bool))
