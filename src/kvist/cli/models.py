"""``kvist models``: the names that can be given, and how to get what isn't here."""

from __future__ import annotations

from kvist.cli import options
from kvist.cli.output import Output, command


@command
def models(is_json: options.Json = False) -> None:
    """List the models that have a name. A path to a .gguf file or a model directory, or hf:ORG/NAME, works as well."""
    from kvist.checkpoint.catalog import list_models

    out = Output(is_json)
    listings = list_models()
    for listing in listings:
        place = f"installed: {listing.path}" if listing.path else f"to get it: {listing.how_to_get}"
        out.line(f"{listing.name:<16} {listing.description}")
        out.line(f"{'':<16} {place}")
    out.finish(
        {
            "models": [
                {
                    "name": listing.name,
                    "description": listing.description,
                    "path": str(listing.path) if listing.path else None,
                    "how_to_get": listing.how_to_get,
                }
                for listing in listings
            ]
        }
    )
