"""The options of ``kvist eval``: which ways of keeping the cache, and what they are measured on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from kvist.cli import options
from kvist.errors import RequestError, SpecError
from kvist.spec.cache import CODECS, CacheSpec, check_codec
from kvist.spec.retention import ALL, FORMS, parse_retention

_DEFAULT_KV = ",".join(codec for codec in CODECS if codec != "f32")
_KNOWN_KV = ", ".join(CODECS)
NARROW_CODECS = {"int8", "int4"}
"""Those that ``--kv-keep-layers`` says something about."""

DEFAULT_DEPTHS = "0.1,0.3,0.5,0.7,0.9"


@dataclass(frozen=True)
class KeepOptions:
    """Which ways of keeping the cache are compared: every codec with every retention."""

    kv: Annotated[
        str,
        typer.Option(
            "--kv", metavar="LIST", help=f"Codecs of {', '.join(CODECS)}; K and V apart as K/V: bf16,int8/int4."
        ),
    ] = _DEFAULT_KV
    kv_keep_layers: options.KvKeepLayers = None
    retention: Annotated[
        str, typer.Option(metavar="LIST", help="What is kept: all, window:N, sinks:S+N, h2o:N, snapkv:N.")
    ] = str(ALL)

    def specs(self) -> list[CacheSpec]:
        """Return each combination once. Raises SpecError for what is unknown or doesn't go together."""
        pairs = codec_pairs(self.kv)
        kept = [parse_retention(part) for part in _listed(self.retention, "--retention", FORMS)]
        layers = options.parse_layers(self.kv_keep_layers or "")
        found = [
            CacheSpec(k=k, v=v, retention=retention, keep_layers=layers if {k, v} & NARROW_CODECS else ())
            for retention in kept
            for k, v in pairs
        ]
        return list(dict.fromkeys(found))

    def check_layers(self, num_layers: int) -> None:
        """Raise SpecError for a kept layer that the model doesn't have, whatever the codecs."""
        CacheSpec(keep_layers=options.parse_layers(self.kv_keep_layers or "")).of_layers(num_layers)


@dataclass(frozen=True)
class TextOptions:
    """What is measured on."""

    text: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The text; - is stdin. Default: the standard library's documentation."),
    ] = None
    tokens: Annotated[int | None, typer.Option(metavar="N", min=2, help="How much of the text. Default: 20480.")] = None
    context: Annotated[
        int | None,
        typer.Option(
            "--context", "--ctx", metavar="N", min=2, help="Tokens of a window. Default: 4096, or as trained if less."
        ),
    ] = None
    depths: Annotated[
        str, typer.Option(metavar="LIST", help="Where in a context the pass key is hidden, from 0 to 1, or none.")
    ] = DEFAULT_DEPTHS

    def needle_depths(self) -> list[float]:
        if self.depths == "none":
            return []
        try:
            found = [float(part) for part in _listed(self.depths, "--depths", "numbers from 0 to 1, none")]
        except ValueError:
            found = [-1.0]
        if not all(0 <= depth <= 1 for depth in found):
            raise RequestError(f'--depths takes numbers from 0 to 1, such as 0.1,0.5, or none; got "{self.depths}"')
        return found


def codec_pairs(text: str) -> list[tuple[str, str]]:
    """Return K's and V's codec of each entry of ``--kv``. Raises SpecError for one that is unknown."""
    return [_codec_pair(part) for part in _listed(text, "--kv", _KNOWN_KV)]


def _listed(text: str, option: str, known: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise RequestError(f'{option} takes a list with commas, got "{text}"; known: {known}')
    return parts


def _codec_pair(text: str) -> tuple[str, str]:
    """Return K's and V's codec of ``CODEC`` or ``K/V``."""
    codecs = text.split("/")
    if len(codecs) > 2:
        raise SpecError(f'--kv takes a codec, or two as K/V, got "{text}"; known: {_KNOWN_KV}')
    for codec in codecs:
        check_codec(codec, "--kv")
    return codecs[0], codecs[-1]
