"""The plan: a question about a model, and every number that answers it.

Pure: a ModelSpec and settings in, values out. What reads files, measures, prints and draws is elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from kvist.planner import capacity
from kvist.planner.capacity import Budget
from kvist.planner.latency import Roofline
from kvist.planner.settings import PlanSettings
from kvist.planner.weight_types import weight_bytes
from kvist.spec.footprint import Footprint
from kvist.spec.model import LayerSpec, ModelSpec


@dataclass(frozen=True)
class Plan:
    """The answers; those that need a memory, a device or the number of parameters are None without."""

    source: ModelSpec
    settings: PlanSettings

    @cached_property
    def model(self) -> ModelSpec:
        """The model with its windows capped as the settings ask."""
        window = self.settings.window
        return self.source if window is None else capped(self.source, window)

    @cached_property
    def context(self) -> int:
        return self.settings.context or self.source.context_length

    @cached_property
    def footprint(self) -> Footprint:
        """The cache of one sequence, all ranks together counted once."""
        settings = self.settings
        return Footprint(
            self.model,
            settings.cache,
            settings.state_codec,
            settings.encoder_tokens,
            settings.engine.price,
            settings.prompt_tokens,
        )

    @cached_property
    def rank(self) -> Footprint:
        """What one tensor-parallel rank keeps of a sequence."""
        return self.footprint.on_rank(self.settings.tensor_parallel)

    @property
    def weight_type(self) -> str:
        return self.settings.weight_type or self.source.weight_type

    @cached_property
    def weights_bytes(self) -> int | None:
        """Bytes of all weights, None where the number of parameters isn't known."""
        if self.settings.weight_bytes is not None:
            return self.settings.weight_bytes
        return weight_bytes(self.source.parameters, self.weight_type) if self.source.parameters else None

    @property
    def overhead_bytes(self) -> int:
        given = self.settings.overhead_bytes
        return self.settings.engine.overhead_bytes(self.source) if given is None else given

    @cached_property
    def budget(self) -> Budget | None:
        """One rank's memory."""
        return capacity.budget(self.settings, self.weights_bytes, self.overhead_bytes, self.source.missing)

    @cached_property
    def charged_bytes(self) -> int:
        """Bytes of one rank that a sequence of the context is charged."""
        return self.settings.engine.charged_bytes(self.rank, self.context)

    @cached_property
    def users(self) -> int | None:
        """Sequences of the context that fit."""
        found = self.budget
        return None if found is None else capacity.users(self.settings, self.rank, found.kv_bytes, self.context)

    @cached_property
    def max_context(self) -> int | None:
        """The longest context for the wished number of users (one, where none was wished), by memory alone."""
        found = self.budget
        if found is None:
            return None
        return capacity.max_context(self.settings, self.rank, found.kv_bytes, self.settings.users or 1)

    @cached_property
    def memory_needed(self) -> int | None:
        """Memory of one device with which the wished users (one, where none was wished) fit."""
        found = self.budget
        if found is None:
            return None
        return capacity.memory_needed(self.settings, self.rank, found, self.settings.users or 1, self.context)

    @cached_property
    def outgrows_weights_at(self) -> int | None:
        """The length from which one sequence's cache is larger than the weights."""
        if self.weights_bytes is None:
            return None
        share = -(-self.weights_bytes // self.settings.tensor_parallel)
        return capacity.outgrows_weights_at(self.settings, self.rank, share)

    @cached_property
    def roofline(self) -> Roofline | None:
        """The speed, where a device and the number of parameters are known."""
        device, parameters = self.settings.device, self.source.parameters
        if device is None or parameters is None:
            return None
        given, scale = self.settings.weight_bytes, 1.0
        if given is not None:
            scale = given / weight_bytes(parameters, self.weight_type)
        return Roofline(self.footprint, parameters, self.weight_type, device, self.settings.tensor_parallel, scale)

    @property
    def fits(self) -> bool | None:
        """Whether the wished users fit; None without a wish or a memory."""
        if self.settings.users is None or self.budget is None:
            return None
        return self.users is None or self.users >= self.settings.users


def plan(model: ModelSpec, **options: Any) -> Plan:
    """Plan the cache of ``model``; ``options`` are the fields of PlanSettings, such as ``context=8192``.

    Raises:
        SpecError: an option is out of its range.
    """
    return Plan(model, PlanSettings(**options))


def capped(model: ModelSpec, window: int) -> ModelSpec:
    """Return ``model`` with no layer keeping more than ``window`` tokens (latent layers can't)."""

    def cap(layer: LayerSpec) -> LayerSpec:
        if layer.kind == "full":
            return replace(layer, kind="window", window=window)
        if layer.kind in ("window", "chunked") and layer.window is not None:
            return replace(layer, window=min(layer.window, window))
        return layer

    return replace(model, layers=tuple(cap(layer) for layer in model.layers))
