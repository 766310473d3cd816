"""Which matrices and vectors a model has, layer by layer: found in the checkpoint by its family's names, and placed."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kvist.checkpoint.files import Checkpoint
from kvist.errors import CheckpointError
from kvist.kernels.layout import padded
from kvist.model.expert_weights import ExpertWeights, find_experts
from kvist.model.families import DecoderSpec, Family, Names
from kvist.model.latent_weights import LatentWeights, find_latent
from kvist.model.rope import attention_factor, frequencies
from kvist.model.unread import check_all_read
from kvist.model.weights import Matrix, Order, Packer, Part, Placed, Rows
from kvist.spec.model import LayerSpec, ModelSpec


@dataclass(frozen=True)
class Norm:
    """``kind`` is one of ``elementwise.NORMS``; offsets of the weight and bias (-1: none)."""

    kind: str
    weight: int
    bias: int


NO_NORM = Norm("none", -1, -1)


@dataclass(frozen=True)
class Turn:
    """A rotation: ``dim`` of a head's dims, offsets of its frequencies and of what cosines are multiplied with."""

    dim: int
    frequencies: int
    factor: int


@dataclass(frozen=True)
class LayerWeights:
    """One layer: matrices with the first output row that each makes.

    ``attention_norm`` and ``mlp_norm`` come before what they are named for, the post norms after it.
    ``nothing``: offset of a logit for each head that counts in its softmax as a token without a value would; -1: none.
    ``experts`` stand in the place of ``up`` and ``down``, which are empty then.
    ``q_norm``, ``k_norm`` (-1: none) and ``scale``, which queries are multiplied with, are offsets. In a ``latent``
    layer ``qkv`` makes queries, or their low-rank form, and latents.
    """

    attention_norm: Norm
    qkv: Placed
    attention_output: Placed
    attention_post_norm: Norm
    mlp_norm: Norm
    up: Placed
    down: Placed
    mlp_post_norm: Norm
    q_norm: int
    k_norm: int
    scale: int
    nothing: int = -1
    experts: ExpertWeights | None = None
    latent: LatentWeights | None = None


@dataclass(frozen=True)
class ModelWeights:
    """The whole model in one arena; numbers without a type are offsets in it.

    ``turns`` are those of ``DecoderSpec.ropes``. The caps are -1 where there is none.
    """

    arena: npt.NDArray[np.uint8]
    type_bytes: dict[str, int]
    embedding: Matrix
    positions: int
    layers: list[LayerWeights]
    final_norm: Norm
    output: Matrix
    eps: int
    turns: tuple[Turn, ...]
    embedding_scale: int
    residual_scale: int
    score_cap: int
    logit_cap: int


class _Finder:
    """Finds one model's tensors; knows names and shapes, and hands them to the packer."""

    def __init__(
        self, packer: Packer, names: Names, model: ModelSpec, spec: DecoderSpec, required: frozenset[str]
    ) -> None:
        self.packer, self.names, self.model, self.spec, self.required = packer, names, model, spec, required

    def number(self, number: float) -> int:
        """Place one number."""
        return self.packer.constant(np.array([number], np.float32))

    def vector(self, name: str, width: int, *, columns: int = 1) -> int:
        """Place a norm's weights."""
        plus = 1 if self.names.has_norms_less_one else 0
        return self.packer.vector(name, width, columns=columns, plus=plus)

    def norm(self, name: str, scale: float = 1.0) -> Norm:
        """A norm over the model's width; one without a name has weights of 1. ``scale`` multiplies what it gives."""
        kind, width = self.spec.norm, self.model.width
        if not name:
            return Norm(kind, self.packer.constant(np.full(width, scale, np.float32), padded(width)), -1)
        bias = name.removesuffix("weight") + "bias"
        plus = 1 if self.names.has_norms_less_one else 0
        weight = self.packer.vector(name, width, plus=plus, times=scale)
        return Norm(kind, weight, self.packer.vector(bias, width, times=scale) if kind == "layer" else -1)

    def matrices(
        self,
        role: str,
        names: list[str],
        sizes: list[int],
        width: int,
        orders: list[Order | None],
        target: str | None = None,
    ) -> Placed:
        """The matrix of a role, from its parts' names, the rows of these tensors, and which of them in which order."""
        packer = self.packer
        parts: list[Part] = []
        biases: list[int | None] = []
        for name, size, order in zip(names, sizes, orders, strict=True):
            is_embedding = role in ("embedding", "output")
            is_transposed = self.names.is_transposed and not is_embedding
            parts.append(packer.part(name, size, width, order, is_transposed=is_transposed, may_be_longer=is_embedding))
            bias = name.removesuffix("weight") + "bias"
            if packer.has(bias):
                biases.append(packer.vector(bias, size, order))
            elif role in self.required:
                raise CheckpointError(
                    f'the file has no tensor "{bias}", which its config says is there; it is incomplete'
                )
            else:
                biases.append(None)
        return packer.matrices(parts, width, biases, target=target)

    def embeddings(self, weights: str | None) -> tuple[Matrix, Matrix]:
        """The embedding and the output matrix, which may be the same."""
        names, model, wide = self.names, self.model, "q8_0" if weights == "q4" else None
        size, width = [model.vocab_size], model.width
        embedding = self.matrices("embedding", [names.embedding], size, width, [None], wide)[0][0]
        if not model.is_tied:
            output = names.other_output if self.packer.has(names.other_output) else names.output
            return embedding, self.matrices("output", [output], size, width, [None], wide)[0][0]
        bias = names.output.removesuffix("weight") + "bias"
        if not self.packer.has(bias):
            return embedding, embedding
        return embedding, replace(embedding, bias=self.packer.vector(bias, model.vocab_size))

    def layer(self, number: int, layer: LayerSpec) -> LayerWeights:
        """One layer's, by its number."""
        names, model, spec = self.names, self.model, self.spec

        def named(field: str) -> str:
            return str(getattr(names, field)).format(n=number)

        has_before, has_after = spec.norm_place != "after", spec.norm_place != "before"
        attention_norm = self.norm(named("attention_norm")) if has_before else NO_NORM
        own_mlp_norm = has_before and not (spec.is_parallel and not names.mlp_norm)
        up, up_sizes, up_orders = _halves([name.format(n=number) for name in names.up], model.mlp_width, spec.is_gated)
        latent = self._latent(number, layer)
        attended = layer.num_heads * (spec.latent.v_dim if latent and spec.latent else layer.k_dim)
        q_norm, k_norm = self._qk_norms(number, layer)
        scale = spec.score_scale
        default = 1 / np.sqrt(np.array([layer.k_dim], np.float32))
        experts = self.experts(number)
        return LayerWeights(
            attention_norm=attention_norm,
            qkv=latent.mixed if latent else self._qkv(number, layer),
            attention_output=self.matrices(
                "attention_output", [named("attention_output")], [model.width], attended, [None]
            ),
            attention_post_norm=self.norm(named("attention_post_norm")) if has_after else NO_NORM,
            mlp_norm=self.norm(named("mlp_norm")) if own_mlp_norm else attention_norm,
            up=[] if experts else self.matrices("up", up, up_sizes, model.width, up_orders),
            down=[] if experts else self.matrices("down", [named("down")], [model.width], model.mlp_width, [None]),
            mlp_post_norm=self.norm(named("mlp_post_norm")) if has_after else NO_NORM,
            q_norm=q_norm,
            k_norm=k_norm,
            scale=self.packer.constant(default.astype(np.float32)) if scale is None else self.number(scale),
            nothing=self.packer.vector(named("nothing"), layer.num_heads) if names.nothing else -1,
            experts=experts,
            latent=latent,
        )

    def experts(self, number: int) -> ExpertWeights | None:
        """The experts of a layer that has them."""
        kind, sets, routing = self.model.experts_of(number), self.names.experts, self.spec.routing
        if kind is None:
            return None
        assert sets and routing is not None, (sets, routing)
        has_biases = "experts" in self.required
        return find_experts(self.packer, sets, number, kind, self.model.width, routing, has_biases=has_biases)

    def _latent(self, number: int, layer: LayerSpec) -> LatentWeights | None:
        """The matrices of latent attention, where the layer has it."""
        names, spec = self.names.latent, self.spec.latent
        if names is None or spec is None or layer.kind != "mla":
            return None
        return find_latent(self.packer, self.matrices, names, spec, number, layer, self.model.width)

    def _qkv(self, number: int, layer: LayerSpec) -> Placed:
        names, fused = [name.format(n=number) for name in self.names.qkv], self.names.fused_qkv.format(n=number)
        names = [fused] if fused and self.packer.has(fused) else names
        q_rows, kv_rows = layer.num_heads * layer.k_dim, layer.num_kv_heads * layer.k_dim
        if len(names) == 1:
            order = functools.partial(_grouped, layer) if self.names.has_grouped_qkv else None
            return self.matrices("qkv", names, [q_rows + 2 * kv_rows], self.model.width, [order])
        orders: list[Order | None] = [None] * 3
        if self.names.has_paired_rows:
            orders = [_paired(heads, layer.k_dim) for heads in (layer.num_heads, layer.num_kv_heads)] + [None]
        return self.matrices("qkv", names, [q_rows, kv_rows, kv_rows], self.model.width, orders)

    def _qk_norms(self, number: int, layer: LayerSpec) -> tuple[int, int]:
        """Offsets of the weights of q's and k's norms, -1 where there is none."""
        if not self.spec.qk_norm:
            return -1, -1
        found = []
        for name, heads in ((self.names.q_norm, layer.num_heads), (self.names.k_norm, layer.num_kv_heads)):
            if self.spec.qk_norm == "head":
                found.append(self.vector(name.format(n=number), layer.k_dim))
            elif self.spec.qk_norm == "each" and "{h}" in name:
                parts = (name.format(n=number, h=head) for head in range(heads))
                found.append(self.packer.vectors(parts, layer.k_dim))
            elif self.spec.qk_norm == "each":
                found.append(self.vector(name.format(n=number), heads, columns=layer.k_dim))
            else:
                found.append(self.vector(name.format(n=number), heads * layer.k_dim))
        return found[0], found[1]


def _paired(num_heads: int, dim: int) -> Order:
    """Where the rows of (d, d + half) order stand in a file that keeps rotated pairs side by side."""
    return lambda: np.arange(num_heads * dim).reshape(num_heads, dim // 2, 2).swapaxes(1, 2).reshape(-1)


def _grouped(layer: LayerSpec) -> Rows:
    """Where the rows of all queries, keys and values stand in a matrix that has them KV head by KV head."""
    share = layer.num_heads // layer.num_kv_heads
    rows = np.arange((layer.num_heads + 2 * layer.num_kv_heads) * layer.k_dim)
    heads = rows.reshape(layer.num_kv_heads, share + 2, layer.k_dim)
    return np.concatenate([heads[:, :share].reshape(-1), heads[:, share].reshape(-1), heads[:, share + 1].reshape(-1)])


def _halves(names: list[str], width: int, is_gated: bool) -> tuple[list[str], list[int], list[Order | None]]:
    """Names, rows and row orders of gate and up: of two tensors, or of the two halves of one."""
    if is_gated and len(names) == 1:
        return (
            names * 2,
            [2 * width] * 2,
            [functools.partial(np.arange, *ends) for ends in ((0, width), (width, 2 * width))],
        )
    return names, [width] * len(names), [None] * len(names)


def _required_biases(checkpoint: Checkpoint, family: Family) -> frozenset[str]:
    """Of a GGUF file those that the family always has: what its config says of others is read off one tensor."""
    unsaid = {"attention_bias": False, "mlp_bias": False} if checkpoint.format == "gguf" else {}
    return family.required_biases({**checkpoint.config, **unsaid})


def load_weights(
    checkpoint: Checkpoint,
    model: ModelSpec,
    family: Family,
    spec: DecoderSpec,
    *,
    weights: str | None,
    num_threads: int,
) -> ModelWeights:
    """Find, check and pack every tensor of the model.

    Raises:
        CheckpointError: a tensor is missing or of the wrong shape.
        UnsupportedError: a tensor's type isn't one that kvist runs, or the forward pass has no use for it.
    """
    names = family.huggingface if checkpoint.format == "huggingface" else family.gguf
    names = family.named(checkpoint.config, names)
    prefix = next((p for p in names.prefixes if p + names.embedding in checkpoint.tensors), names.prefixes[0])
    packer = Packer(checkpoint, weights, prefix)
    finder = _Finder(packer, names, model, spec, _required_biases(checkpoint, family))
    embedding, output = finder.embeddings(weights)
    context = model.context_length
    positions = packer.vector(names.positions, context, columns=model.width) if names.positions else -1
    layers = [finder.layer(number, layer) for number, layer in enumerate(model.layers)]
    final_norm = finder.norm(names.final_norm, spec.logit_scale)
    check_all_read(checkpoint, packer.read, names, model)
    turns = tuple(
        Turn(rope.dim, packer.constant(frequencies(rope)), finder.number(attention_factor(rope))) for rope in spec.ropes
    )
    numbers = {
        "eps": finder.number(spec.norm_eps),
        "embedding_scale": finder.number(spec.embedding_scale),
        "residual_scale": finder.number(spec.residual_scale),
        "score_cap": finder.number(spec.score_cap) if spec.score_cap else -1,
        "logit_cap": finder.number(spec.logit_cap) if spec.logit_cap else -1,
    }
    return ModelWeights(
        arena=packer.fill(num_threads),
        type_bytes=dict(packer.type_bytes),
        embedding=embedding,
        positions=positions,
        layers=layers,
        final_norm=final_norm,
        output=output,
        turns=turns,
        **numbers,
    )
