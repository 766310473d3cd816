"""JSON from files that strangers made: an object or a one-line error, whatever the bytes are.

Sizes are limited before anything is read, and neither deep nesting nor numbers of a million digits get further
than here.
"""

from __future__ import annotations

import json
from pathlib import Path

from kvist.checkpoint.disk import reason, regular_file_bytes
from kvist.checkpoint.files import quote, quote_path
from kvist.errors import CheckpointError

MAX_JSON_BYTES = 64 << 20
MAX_DIGITS = 100


def read_json_object(path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> dict[str, object]:
    """Return the object that the file holds; raises CheckpointError if it is missing, too large or no object."""
    num_bytes = regular_file_bytes(path)
    if num_bytes > max_bytes:
        raise CheckpointError(
            f"{quote_path(path)} has {num_bytes} bytes; at most {max_bytes} are allowed for such a file"
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"can't read {quote_path(path)}: {reason(error)}") from None
    return parse_json_object(data, quote_path(path))


def parse_json_object(data: bytes, what: str, *, strict: bool = False) -> dict[str, object]:
    """Return the object in ``data`` (UTF-8); ``what`` names it in the CheckpointError that anything else raises.

    As for Hugging Face's own programs, of a name that occurs twice the last value counts, and NaN and Infinity are
    numbers; ``strict`` refuses both.
    """
    try:
        value = json.loads(
            data.decode(),
            object_pairs_hook=_unique if strict else None,
            parse_constant=_no_number if strict else None,
            parse_int=_whole_number,
        )
    except RecursionError:
        raise CheckpointError(f"{what} is nested too deeply; fetch it again") from None
    except ValueError as error:
        raise CheckpointError(f"{what} is not valid JSON ({quote(error)[1:-1]}); fetch it again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{what} must hold a JSON object, got {type(value).__name__}; fetch it again")
    return value


def _whole_number(text: str) -> int:
    """Convert digits; raises ValueError for so many that converting them would take time."""
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _no_number(text: str) -> object:
    raise ValueError(f"{text} is no number of JSON")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Build an object; raises ValueError where a name occurs twice."""
    value: dict[str, object] = {}
    for name, item in pairs:
        if name in value:
            raise ValueError(f"{name[:40]} occurs twice")
        value[name] = item
    return value
