"""What a benchmark's document is held to: the schemas that ship with the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

import kvist.lab

SCHEMAS = Path(kvist.lab.__path__[0]) / "schemas"


def schema(name: str) -> dict[str, Any]:
    return json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))


def validator(name: str) -> Draft202012Validator:
    """Return what checks a document against ``name``; the schemas refer to each other by their files' names."""
    registry: Registry = Registry().with_resources(
        (path.name, Resource.from_contents(schema(path.stem))) for path in SCHEMAS.glob("*.json")
    )
    return Draft202012Validator(schema(name), registry=registry)


def check(document: dict[str, Any]) -> None:
    """Raise ValidationError unless the document is as its benchmark's schema says."""
    validator(f"bench_{document['bench']}").validate(document)
