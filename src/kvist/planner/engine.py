"""What a plan asks of an engine: its codecs, and how it rounds and charges a sequence's cache.

Three engines are known, a file each; kvist's own is here, since its arithmetic is ``spec.footprint`` itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from kvist.errors import SpecError
from kvist.spec.cache import BLOCK_TOKENS, CODECS, KVIST, CacheSpec, Price
from kvist.spec.footprint import STEP_TOKENS, Footprint
from kvist.spec.model import ModelSpec
from kvist.spec.state import STATE_BYTES


class Engine(Protocol):
    """An engine as a plan sees it. A footprint is of one rank, at this engine's ``price``."""

    @property
    def name(self) -> str:
        """What ``--engine`` calls it."""

    @property
    def codecs(self) -> tuple[str, ...]:
        """Codecs that it keeps a cache in."""

    @property
    def state_codecs(self) -> tuple[str, ...]:
        """Precisions that it keeps a recurrent state in."""

    @property
    def price(self) -> Price:
        """What its cache costs."""

    def check(self, spec: CacheSpec) -> None:
        """Raise SpecError for a codec that the engine lacks."""

    def allocated_bytes(self, footprint: Footprint, num_tokens: int) -> int:
        """Bytes that a sequence of ``num_tokens`` holds between two steps, in the engine's blocks."""

    def charged_bytes(self, footprint: Footprint, num_tokens: int) -> int:
        """Bytes that must be free for a sequence to grow to ``num_tokens``: what capacity is divided by."""

    def overhead_bytes(self, model: ModelSpec) -> int:
        """Memory that the engine takes beside weights and cache, where the user doesn't say."""

    def report(self, footprint: Footprint, num_tokens: int, kv_budget_bytes: int | None) -> dict[str, Any]:
        """What the engine itself would say: its blocks and its own counts, as JSON."""


def check_keeps_all(name: str, spec: CacheSpec) -> None:
    """Raise SpecError where another engine is asked for a retention, which only kvist has."""
    if spec.retention.kind != "all":
        raise SpecError(
            f"{name} keeps all tokens of a layer, got --retention {spec.retention}; --window N plans its layers capped"
        )


@dataclass(frozen=True)
class KvistEngine:
    """kvist: blocks of 16 tokens, a window's slack of one step."""

    name: str = "kvist"
    codecs: tuple[str, ...] = CODECS
    state_codecs: tuple[str, ...] = tuple(STATE_BYTES)
    price: Price = KVIST

    def check(self, spec: CacheSpec) -> None:
        """Everything that is priced may be planned."""

    def allocated_bytes(self, footprint: Footprint, num_tokens: int) -> int:
        """Whole blocks."""
        return footprint.allocated_bytes(num_tokens)

    def charged_bytes(self, footprint: Footprint, num_tokens: int) -> int:
        """What is reserved: whole blocks, and in a window those of the step that is being written."""
        return footprint.reserved_bytes(num_tokens)

    def overhead_bytes(self, _model: ModelSpec) -> int:
        """Nothing beyond what the utilisation leaves free."""
        return 0

    def report(self, footprint: Footprint, num_tokens: int, _kv_budget_bytes: int | None) -> dict[str, Any]:
        """Blocks by layer group."""
        blocks = [group.peak_blocks(num_tokens, STEP_TOKENS) for group in footprint.groups]
        return {
            "name": self.name,
            "block_tokens": BLOCK_TOKENS,
            "blocks": sum(blocks),
            "charged_bytes": self.charged_bytes(footprint, num_tokens),
        }
