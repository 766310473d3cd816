"""A model split over several GGUF files: which files there are, and that they are parts of one model.

llama.cpp's ``gguf-split`` names them ``NAME-00001-of-00003.gguf`` and so on. The first has all keys; every part has
``split.count``, ``split.no`` (from 0) and ``split.tensors.count``, the number of tensors in all parts together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvist.checkpoint.disk import exists
from kvist.checkpoint.files import listed, quote, quote_path
from kvist.checkpoint.gguf_part import GgufPart
from kvist.errors import CheckpointError

MAX_PARTS = 1024
_NAME = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)


@dataclass(frozen=True)
class SplitName:
    """What a file's name says about the split; ``number`` counts from 1."""

    model: str
    number: int
    count: int

    def names(self) -> list[str]:
        """The names of all parts, in order."""
        return [f"{self.model}-{number:05}-of-{self.count:05}.gguf" for number in range(1, self.count + 1)]


def split_name(name: str) -> SplitName | None:
    """Read a file's name; None where it isn't the name of one of several parts.

    Raises CheckpointError for a number that can't be, or more parts than a model has.
    """
    match = _NAME.fullmatch(name)
    if match is None or int(match[3]) == 1:
        return None
    number, count = int(match[2]), int(match[3])
    if not 1 <= number <= count <= MAX_PARTS:
        raise CheckpointError(
            f"{quote(name)} is named part {number} of {count}; allowed: 1 to the number of parts, at most {MAX_PARTS}"
        )
    return SplitName(match[1], number, count)


def open_parts(path: Path) -> list[GgufPart]:
    """Open the file and, by its name, the other parts of its model; the caller closes them.

    Raises CheckpointError where parts are missing or a file can't be read.
    """
    name = split_name(path.name)
    paths = [path] if name is None else [path.with_name(other) for other in name.names()]
    missing = [other.name for other in paths if other != path and not exists(other)]
    if missing:
        raise CheckpointError(
            f"{quote_path(path)} is one of {len(paths)} parts, of which {len(missing)} are missing beside it: "
            f"{listed(missing)}; fetch them too"
        )
    parts: list[GgufPart] = []
    try:
        parts.extend(map(GgufPart, paths))
    except CheckpointError:
        for part in parts:
            part.close()
        raise
    return parts


def joined(path: Path, parts: list[GgufPart]) -> Mapping[str, GgufPart]:
    """Return the part that holds each tensor, in the files' order.

    Raises CheckpointError where the parts don't belong together, or more belong to them than their names say.
    """
    places: dict[str, GgufPart] = {}
    for number, part in enumerate(parts):
        _check_place(part, number, len(parts))
        for name in part.tensors:
            if name in places:
                raise CheckpointError(
                    f"{quote_path(places[name].path)} and {quote_path(part.path)} both have a tensor {quote(name)}; "
                    "fetch both again"
                )
            places[name] = part
    claimed = parts[0].metadata.get("split.tensors.count", len(places))
    if len(parts) > 1 and claimed != len(places):
        raise CheckpointError(
            f"{quote_path(path)} and the other parts have {len(places)} tensors, its header says {quote(claimed)}; "
            "fetch them again"
        )
    return places


def _check_place(part: GgufPart, number: int, count: int) -> None:
    claimed_count = part.metadata.get("split.count", 1 if count == 1 else None)
    claimed_number = part.metadata.get("split.no", 0)
    if count == 1 and claimed_count in (0, 1):
        return
    if (claimed_number, claimed_count) != (number, count):
        raise CheckpointError(
            f"{quote_path(part.path)} says it is part {_shown(claimed_number)} of {quote(claimed_count)}, where part "
            f"{number + 1} of {count} belongs; parts keep the names that llama.cpp gave them (NAME-00001-of-00003.gguf)"
        )


def _shown(number: object) -> str:
    return str(number + 1) if type(number) is int else quote(number)
