"""What a family is: switches of the one forward pass, and the tensor names of a file format.

Knows no family; each has a file beside this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from kvist.model.rope import RopeSpec
from kvist.spec.model import LayerSpec


@dataclass(frozen=True)
class RoutingSpec:
    """How a layer with experts chooses them.

    ``scores``: what experts are chosen by, and what their results are multiplied with: "softmax" of all logits, each
    one's "sigmoid", or "chosen": the logits, with a softmax of those that were chosen. ``is_normed``: divided by their
    sum. ``scale`` multiplies them after that. Only experts of the ``num_kept_groups`` groups, of ``num_groups`` equal
    ones, can be chosen whose ``group_best`` best scores add up to most.
    """

    scores: str = "softmax"
    is_normed: bool = True
    scale: float = 1.0
    num_groups: int = 1
    num_kept_groups: int = 1
    group_best: int = 1


@dataclass(frozen=True)
class ExpertNames:
    """Tensor names of a layer's experts, of which a file format may have several sets.

    In ``up`` (gate and up; one name has gate's rows and then up's, or in turn where it ``is_interleaved``) and ``down``
    ``{e}`` is the expert; a name without it has all experts' matrices, stacked, those ``is_transposed`` as (inputs,
    outputs). ``bias_ending`` takes the place of ``.weight``. ``selection_bias`` is added to scores only to choose by.
    """

    router: str
    up: tuple[str, ...]
    down: str
    selection_bias: str = ""
    shared_up: tuple[str, ...] = ()
    shared_down: str = ""
    shared_gate: str = ""
    is_transposed: bool = False
    is_interleaved: bool = False
    bias_ending: str = ".bias"


@dataclass(frozen=True)
class LatentSpec:
    """Multi-head latent attention (DeepSeek-V2, 2024). Widths in numbers a token or, of a head's parts, a head.

    A query is ``own`` numbers, which meet a latent of width ``rank`` through a matrix, and ``turned`` ones that are
    rotated and meet a key that all heads share; a value is ``v_dim`` numbers. ``q_rank``: queries come through a low
    rank, None: they don't. ``scale`` is what scores are multiplied with. ``is_interleaved``: rotated pairs stand side
    by side in a checkpoint's rows.
    """

    rank: int
    turned: int
    own: int
    v_dim: int
    q_rank: int | None
    scale: float
    is_interleaved: bool
    eps: float = 1e-6


@dataclass(frozen=True)
class LatentNames:
    """Tensor names of latent attention: of queries without (``q``) and with a low rank, of latents, and of what expands
    them: keys and values in one matrix, or, where a format has that too, apart and per head.
    """

    q: str
    q_a: str
    q_norm: str
    q_b: str
    kv_a: str
    kv_norm: str
    kv_b: str
    k_b: str = ""
    v_b: str = ""


@dataclass(frozen=True)
class DecoderSpec:
    """The switches of the forward pass. ``rope`` is None where positions are learned.

    ``norm``: "rms" or "layer". ``activation``: "silu", "gelu_tanh" or "gelu". ``is_gated``: the MLP is
    act(gate) * up, not act(up). ``qk_norm``: how q and k are normed before rotation: "" (not), "head" (an RMSNorm over
    each head, of the same weights), "each" (the family's norm over each head, of weights of its own), "all" (the
    family's norm over all heads at once).

    ``norm_place``: what a layer's norms stand "before" (attention and MLP), "after" (what is added to the residual
    stream), or "around" (both). ``is_parallel``: the MLP reads what attention reads, not what attention has added to.

    ``window_rope``: that of layers with a window, where it is another. Layers of ``unrotated`` (numbers) turn nothing.
    ``score_scale``: what scores are multiplied with; None: 1 / sqrt(head width). Scores are kept below ``score_cap``
    and logits below ``logit_cap`` by cap * tanh(x / cap) (0: not). Embeddings, what a layer adds to the residual
    stream, and logits are multiplied with their ``..._scale``.

    ``routing`` is that of layers with experts. ``latent``: keys and values are one latent a token.
    """

    norm: str
    norm_eps: float
    activation: str
    is_gated: bool
    rope: RopeSpec | None
    qk_norm: str = ""
    norm_place: str = "before"
    is_parallel: bool = False
    window_rope: RopeSpec | None = None
    unrotated: frozenset[int] = frozenset()
    score_scale: float | None = None
    score_cap: float = 0.0
    logit_cap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    routing: RoutingSpec | None = None
    latent: LatentSpec | None = None

    @property
    def ropes(self) -> tuple[RopeSpec, ...]:
        """The model's different rotations."""
        return tuple(rope for rope in (self.rope, self.window_rope) if rope is not None)

    def for_context(self, context: int) -> DecoderSpec:
        """Return the switches of a model that is opened with so many tokens."""
        rope, window_rope = self.rope, self.window_rope
        return replace(
            self,
            rope=rope and rope.for_context(context),
            window_rope=window_rope and window_rope.for_context(context),
        )

    def rope_number(self, number: int, layer: LayerSpec) -> int | None:
        """Which of ``ropes`` a layer turns q and k by, or None."""
        if self.rope is None or number in self.unrotated:
            return None
        return 1 if self.window_rope is not None and layer.window is not None else 0


@dataclass(frozen=True)
class Names:
    """Tensor names in one file format; ``{n}`` is the layer. Several names for a matrix are its parts, stacked by rows.

    A bias is the same name ending in ``.bias``. ``other_output`` is how some files name the output, ``fused_qkv`` how
    some have q, k and v in one. A norm without a name has no weights; an empty ``mlp_norm`` of a parallel layer is its
    attention norm; ``{h}`` is a head. ``is_transposed``: matrices are stored (inputs, outputs). ``has_paired_rows``:
    rows of q and k stand in the order of rotated pairs (d, d + half), as llama.cpp converts them.
    ``has_grouped_qkv``: the one matrix of q, k and v has each KV head's rows together: its queries', key, value.
    ``has_norms_less_one``: norms' weights are stored less 1. ``nothing``: learned logits of attending to nothing
    ("sinks"). ``experts``: sets of names, of which a file has one.
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
    fused_qkv: str = ""
    other_output: str = ""
    positions: str = ""
    q_norm: str = ""
    k_norm: str = ""
    attention_post_norm: str = ""
    mlp_post_norm: str = ""
    nothing: str = ""
    experts: tuple[ExpertNames, ...] = ()
    latent: LatentNames | None = None
    prefixes: tuple[str, ...] = ("",)
    is_transposed: bool = False
    has_paired_rows: bool = False
    has_grouped_qkv: bool = False
    has_norms_less_one: bool = False


@dataclass(frozen=True)
class Family:
    """One row of the table.

    ``switches``: from a config and its head width. ``required_biases``: the matrices (of ``Names``) whose bias must be
    there, given the config. ``named``: the names as a config changes them.
    """

    switches: Callable[[Mapping[str, object], int], DecoderSpec]
    huggingface: Names
    gguf: Names
    required_biases: Callable[[Mapping[str, object]], frozenset[str]] = field(default=lambda _config: frozenset())
    named: Callable[[Mapping[str, object], Names], Names] = field(default=lambda _config, names: names)
