"""What a family is: switches of the one forward pass, and the tensor names of a file format.

Knows no family; each has a file beside this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvist.model.rope import RopeSpec


@dataclass(frozen=True)
class DecoderSpec:
    """The switches of the forward pass. ``rope`` is None where positions are learned.

    ``norm``: "rms" or "layer". ``activation``: "silu" or "gelu_tanh". ``is_gated``: the MLP is
    act(gate) * up, not act(up). ``has_qk_norm``: each head's q and k pass an RMSNorm of their own before rotation.
    """

    norm: str
    norm_eps: float
    activation: str
    is_gated: bool
    rope: RopeSpec | None
    has_qk_norm: bool = False


@dataclass(frozen=True)
class Names:
    """Tensor names in one file format; ``{n}`` is the layer. Several names for a matrix are its parts, stacked by rows.

    A bias is the same name ending in ``.bias``. ``is_transposed``: matrices are stored (inputs, outputs).
    ``has_paired_rows``: rows of q and k stand in the order of rotated pairs (d, d + half), as llama.cpp converts them.
    """

    embedding: str
    attention_norm: str
    qkv: tuple[str, ...]
    attention_output: str
    mlp_norm: str
    up: tuple[str, ...]
    down: str
    final_norm: str
    output: str
    positions: str = ""
    q_norm: str = ""
    k_norm: str = ""
    prefixes: tuple[str, ...] = ("",)
    is_transposed: bool = False
    has_paired_rows: bool = False


@dataclass(frozen=True)
class Family:
    """One row of the table.

    ``switches``: from a config and its head width. ``required_biases``: the matrices (of ``Names``) whose bias must be
    there, given the config.
    """

    switches: Callable[[Mapping[str, object], int], DecoderSpec]
    huggingface: Names
    gguf: Names
    required_biases: Callable[[Mapping[str, object]], frozenset[str]] = field(default=lambda _config: frozenset())
