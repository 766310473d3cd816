"""Which kind each layer is, by the rules of the reference implementation's config classes.

A rule takes the config's fields and the number of layers and returns one name a layer, spelled as the reference
library spells it today: full_attention, sliding_attention, chunked_attention, linear_attention (any recurrence),
conv, hybrid (attention beside a recurrence), cross_attention (to an encoder's output alone), mlp (nothing to keep).
"""

from __future__ import annotations

from collections.abc import Callable

from kvist.errors import SpecError
from kvist.spec.fields import Fields

Rule = Callable[[Fields, int], list[str]]

FULL, SLIDING, CHUNKED, LINEAR = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"
CONV, HYBRID, CROSS, MLP = "conv", "hybrid", "cross_attention", "mlp"
KNOWN = (FULL, SLIDING, CHUNKED, LINEAR, CONV, HYBRID, CROSS, MLP)

_LEGACY = {
    "attention": FULL,
    "indexed_attention": FULL,
    "deepseek_sparse_attention": FULL,
    "mamba": LINEAR,
    "moe": MLP,
}
_PATTERN_LETTERS = {"M": LINEAR, "*": FULL, "-": MLP, "E": MLP}


def stated(fields: Fields, num_layers: int) -> list[str] | None:
    """Return the list that the config itself gives, or None.

    Raises:
        SpecError: the list has another length than there are layers, or names a kind that can't be priced.
    """
    for key in ("layer_types", "layers_block_type"):
        names = fields.texts(key)
        if names is not None:
            return _checked([_LEGACY.get(name, name) for name in names], key, num_layers)
    return None


def _checked(names: list[str], key: str, num_layers: int) -> list[str]:
    if len(names) != num_layers:
        raise SpecError(f"{key} in the config names {len(names)} layers, the number of layers is {num_layers}")
    for name in names:
        if name not in KNOWN:
            raise SpecError(
                f'{key} in the config has the kind "{name}", which can\'t be priced; known: {", ".join(KNOWN)}'
            )
    return names


def every_layer(name: str) -> Rule:
    """Return the rule by which all layers are ``name``, whatever the config lists."""
    return lambda _fields, num_layers: [name] * num_layers


def stated_or(default: Rule) -> Rule:
    """Return the rule that takes the config's own list where there is one, else ``default``."""
    return lambda fields, num_layers: stated(fields, num_layers) or default(fields, num_layers)


def last_of(period: int, *keys: str, others: str = SLIDING) -> Rule:
    """Return the rule by which each ``period``-th layer is full and the rest are ``others``.

    ``keys`` are config keys that state the period; 0 there means that every layer is full, a string such as
    "LLLG" spells one period.
    """

    def rule(fields: Fields, num_layers: int) -> list[str]:
        value = fields.value(*keys) if keys else None
        if isinstance(value, str):
            if not value or set(value) - set("LG"):
                raise SpecError(f'{keys[0]} in the config must be a period or letters L and G, got "{value}"')
            return [FULL if value[number % len(value)] == "G" else others for number in range(num_layers)]
        length = fields.maybe_count(*keys, least=0) if keys else period
        length = period if length is None else length
        return [others if length and (number + 1) % length else FULL for number in range(num_layers)]

    return stated_or(rule)


def first_of(period: int) -> Rule:
    """Return the rule by which the first layer of each ``period`` is full and the rest slide."""
    return stated_or(lambda _fields, num_layers: [SLIDING if number % period else FULL for number in range(num_layers)])


def _after_max_window_layers(fields: Fields, num_layers: int) -> list[str]:
    first = fields.count("max_window_layers", least=0)
    return [SLIDING if number >= first else FULL for number in range(num_layers)]


def _alternating_below_max_window_layers(fields: Fields, num_layers: int) -> list[str]:
    end = fields.count("max_window_layers", least=0)
    return [SLIDING if number % 2 == 0 and number < end else FULL for number in range(num_layers)]


qwen = stated_or(_after_max_window_layers)
qwen2_moe = stated_or(_alternating_below_max_window_layers)


def without_rope(fields: Fields, num_layers: int) -> list[str]:
    """Layers with a rotary position see their chunk, those without one see everything (Llama 4)."""
    has_rope = _rope_flags(fields, num_layers)
    is_chunked = fields.maybe_count("attention_chunk_size") is not None
    return [CHUNKED if rope and is_chunked else FULL for rope in has_rope]


def sliding_without_rope(fields: Fields, num_layers: int) -> list[str]:
    """Layers without a rotary position slide, where the config asks for a window at all (SmolLM3)."""
    return [FULL if rope else SLIDING for rope in _rope_flags(fields, num_layers)]


def _rope_flags(fields: Fields, num_layers: int) -> list[bool]:
    flags = fields.counts("no_rope_layers")
    if flags:
        if len(flags) != num_layers:
            raise SpecError(f"no_rope_layers in the config names {len(flags)} layers, there are {num_layers}")
        return [bool(flag) for flag in flags]
    interval = fields.count("no_rope_layer_interval")
    return [(number + 1) % interval != 0 for number in range(num_layers)]


def jamba(fields: Fields, num_layers: int) -> list[str]:
    """One attention layer in each period, at an offset."""
    period, offset = fields.count("attn_layer_period"), fields.count("attn_layer_offset", least=0)
    return [FULL if number % period == offset else LINEAR for number in range(num_layers)]


def listed_full(key: str, others: str) -> Rule:
    """Return the rule by which the layers whose numbers ``key`` lists are full; without the key all are ``others``."""

    def rule(fields: Fields, num_layers: int) -> list[str]:
        numbers = fields.counts(key) or ()
        return [FULL if number in numbers else others for number in range(num_layers)]

    return stated_or(rule)


def lfm2(fields: Fields, num_layers: int) -> list[str]:
    """Full attention where listed, everywhere where nothing is listed."""
    numbers = fields.counts("full_attn_idxs")
    return [FULL if numbers is None or number in numbers else CONV for number in range(num_layers)]


def nemotron_h(fields: Fields, num_layers: int) -> list[str]:
    """A letter a layer: M a recurrence, * attention, - and E nothing that keeps a state."""
    pattern = fields.text("hybrid_override_pattern")
    if not pattern:
        raise SpecError("the config doesn't say hybrid_override_pattern; without it the layers' kinds are unknown")
    unknown = set(pattern) - set(_PATTERN_LETTERS)
    if unknown:
        known = " ".join(_PATTERN_LETTERS)
        raise SpecError(f'hybrid_override_pattern in the config has the letter "{min(unknown)}"; known: {known}')
    return _checked([_PATTERN_LETTERS[letter] for letter in pattern], "hybrid_override_pattern", num_layers)


def kimi_linear(fields: Fields, num_layers: int) -> list[str]:
    """Two lists of layer numbers counted from 1, else each fourth layer full from the fifth on."""
    lists = fields.nested("linear_attn_config")
    full, linear = lists.counts("full_attn_layers", least=1), lists.counts("kda_layers", least=1)
    if full is None or linear is None:
        return [FULL if number and number % 4 == 0 else LINEAR for number in range(num_layers)]
    if sorted((*full, *linear)) != list(range(1, num_layers + 1)):
        raise SpecError(f"full_attn_layers and kda_layers in the config must name each of the {num_layers} layers once")
    return [FULL if number + 1 in full else LINEAR for number in range(num_layers)]


def recurrent_gemma(fields: Fields, num_layers: int) -> list[str]:
    """A repeated list of blocks; attention there always slides."""
    blocks = fields.texts("block_types") or ("recurrent", "recurrent", "attention")
    return [SLIDING if blocks[number % len(blocks)] == "attention" else LINEAR for number in range(num_layers)]


def gpt_neo(fields: Fields, num_layers: int) -> list[str]:
    """Pairs of (kinds, repeats): global layers are full, local ones slide."""
    value = fields.value("attention_types")
    pairs = [[["global", "local"], num_layers // 2]] if value is None else value
    names: list[str] = []
    try:
        for listed, repeats in pairs:  # type: ignore[attr-defined]
            if not 0 <= repeats <= num_layers:
                raise ValueError
            names.extend(SLIDING if kind == "local" else FULL for kind in list(listed) * repeats)
    except (TypeError, ValueError):
        raise SpecError("attention_types in the config must be a list of (kinds, repeats)") from None
    return _checked(names, "attention_types", num_layers)


def mimo(fields: Fields, num_layers: int) -> list[str]:
    """The first layer and each sixth are full, unless a list of 0 (full) and 1 (sliding) says otherwise."""
    flags = fields.counts("hybrid_layer_pattern")
    if flags is not None:
        return _checked([SLIDING if flag else FULL for flag in flags], "hybrid_layer_pattern", num_layers)
    return [FULL if number == 0 or (number + 1) % 6 == 0 else SLIDING for number in range(num_layers)]


def zamba2(_fields: Fields, num_layers: int) -> list[str]:
    """Recurrences, some of them with the shared attention block before them."""
    blocks = "MMMMMMH" + "MMMMMH" * 6 + "MMMMHMMMHMM"
    return _checked([HYBRID if block == "H" else LINEAR for block in blocks], "layers_block_type", num_layers)


def minimax(fields: Fields, num_layers: int) -> list[str]:
    """Full attention first, then in turn, unless a list of 0 (linear) and 1 (full) says otherwise."""
    flags = fields.counts("attn_type_list")
    if flags is not None:
        return _checked([FULL if flag else LINEAR for flag in flags], "attn_type_list", num_layers)
    return [LINEAR if number % 2 else FULL for number in range(num_layers)]


def mllama(fields: Fields, num_layers: int) -> list[str]:
    """The listed layers attend to the image alone (Llama 3.2 Vision)."""
    numbers = fields.counts("cross_attention_layers") or ()
    return [CROSS if number in numbers else FULL for number in range(num_layers)]
