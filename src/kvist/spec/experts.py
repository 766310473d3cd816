"""Which layers have experts, how many, how wide, and what stands beside them.

A ``where`` rule takes the config's fields and the number of layers and returns a flag a layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvist.errors import SpecError
from kvist.spec.fields import Fields

Where = Callable[[Fields, int], list[bool]]

NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
EXPERT_WIDTH = ("moe_intermediate_size", "intermediate_size")


def everywhere(_fields: Fields, num_layers: int) -> list[bool]:
    """Every layer has experts."""
    return [True] * num_layers


def stated_or(default: Where) -> Where:
    """Return the rule that takes mlp_layer_types (dense, sparse) where the config has it, else ``default``."""

    def rule(fields: Fields, num_layers: int) -> list[bool]:
        names = fields.texts("mlp_layer_types")
        if names is None:
            return default(fields, num_layers)
        if len(names) != num_layers:
            raise SpecError(f"mlp_layer_types in the config names {len(names)} layers, there are {num_layers}")
        return [name == "sparse" for name in names]

    return rule


def after_dense(*keys: str) -> Where:
    """Return the rule by which the first layers, as many as ``keys`` say, are dense; then one in moe_layer_freq."""

    def rule(fields: Fields, num_layers: int) -> list[bool]:
        num_dense = fields.maybe_count(*keys, least=0) or 0
        period = fields.maybe_count("moe_layer_freq") or 1
        return [number >= num_dense and number % period == 0 for number in range(num_layers)]

    return stated_or(rule)


def sparse_steps(fields: Fields, num_layers: int) -> list[bool]:
    """Each decoder_sparse_step-th layer, but none in mlp_only_layers (Qwen)."""
    step, dense = fields.maybe_count("decoder_sparse_step") or 1, fields.counts("mlp_only_layers") or ()
    has_experts = bool(fields.maybe_count(*NUM_EXPERTS, least=0))
    return [has_experts and number not in dense and (number + 1) % step == 0 for number in range(num_layers)]


def if_any(fields: Fields, num_layers: int) -> list[bool]:
    """Every layer where the config has experts at all (Granite hybrids)."""
    return [bool(fields.maybe_count(*NUM_EXPERTS, least=0))] * num_layers


def llama4(fields: Fields, num_layers: int) -> list[bool]:
    """The listed layers, else the last of each interleave step."""
    listed, step = fields.counts("moe_layers"), fields.maybe_count("interleave_moe_layer_step") or 1
    return [number in listed if listed is not None else (number + 1) % step == 0 for number in range(num_layers)]


def jamba(fields: Fields, num_layers: int) -> list[bool]:
    """One in each period, at an offset."""
    period, offset = fields.count("expert_layer_period"), fields.count("expert_layer_offset", least=0)
    return [fields.count("num_experts") > 1 and number % period == offset for number in range(num_layers)]


def ernie(fields: Fields, num_layers: int) -> list[bool]:
    """From a first to a last layer, one in each interval."""
    first, step = fields.count("moe_layer_start_index", least=0), fields.count("moe_layer_interval")
    end = fields.count("moe_layer_end_index", least=-1)
    last = num_layers - 1 if end == -1 else end
    return [first <= number <= last and (number + 1) % step == 0 for number in range(num_layers)]


@dataclass(frozen=True)
class Experts:
    """One layer's: a token uses ``chosen`` of ``number``, each ``width`` wide inside, and besides, where
    ``shared_width`` isn't 0, the shared one of that width.
    """

    number: int
    chosen: int
    width: int
    shared_width: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.chosen <= self.number or self.width < 1:
            raise SpecError(f"a token uses 1 to {self.number} of {self.number} experts, got {self.chosen}")


def check_chosen(fields: Fields) -> None:
    """Raise SpecError where a config says that a token uses more experts than there are, or none."""
    number = fields.maybe_count(*NUM_EXPERTS)
    chosen = fields.maybe_count(*PER_TOKEN)
    if number is not None and chosen is not None and chosen > number:
        key = next(key for key in PER_TOKEN if fields.value(key) is not None)
        raise SpecError(f"{key} in the config must be between 1 and its {number} experts, got {chosen}")


@dataclass(frozen=True)
class ExpertRules:
    """The experts of a layer: ``where`` they are, and how wide what stands beside them is.

    ``shared`` returns the summed width of the experts that every token uses. ``router_bias`` adds a number an
    expert, ``bias`` one an output of every expert matrix, ``shared_gate`` a vector that weighs the shared expert.
    """

    where: Where = everywhere
    width: tuple[str, ...] = EXPERT_WIDTH
    shared: Callable[[Fields], int] | None = None
    is_gated: bool = True
    bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False


def layer_experts(rules: ExpertRules, fields: Fields, num_layers: int) -> tuple[Experts | None, ...]:
    """Return each layer's experts, None for a layer without; empty where no layer has any.

    Raises:
        SpecError: the config lacks a key that says how many they are, or how wide.
    """
    flags = rules.where(fields, num_layers)
    if not any(flags):
        return ()
    experts = Experts(
        fields.count(*NUM_EXPERTS),
        fields.count(*PER_TOKEN),
        fields.count(*rules.width),
        rules.shared(fields) if rules.shared else 0,
    )
    return tuple(experts if has_experts else None for has_experts in flags)


def counted(*keys: str) -> Callable[[Fields], int]:
    """Return the rule by which as many shared experts as ``keys`` say are as wide as the routed ones."""
    return lambda fields: (fields.maybe_count(*keys, least=0) or 0) * fields.count(*EXPERT_WIDTH)


def wide(*keys: str) -> Callable[[Fields], int]:
    """Return the rule by which the config states the shared expert's width under ``keys``; absent is none."""
    return lambda fields: fields.maybe_count(*keys, least=0) or 0
