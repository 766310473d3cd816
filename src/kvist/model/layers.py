"""Which matrices and vectors a model has, layer by layer: found in the checkpoint by its family's names, and placed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvist.checkpoint.files import Checkpoint
from kvist.errors import CheckpointError
from kvist.model.families import DecoderSpec, Family, Names
from kvist.model.rope import frequencies
from kvist.model.weights import Matrix, Packer, Part, Rows
from kvist.spec.model import LayerSpec, ModelSpec

Placed = list[tuple[Matrix, int]]
"""The matrices of one role, each with the first output row that it makes."""


@dataclass(frozen=True)
class Norm:
    """Offsets of a norm's weight and bias (-1: none)."""

    weight: int
    bias: int


@dataclass(frozen=True)
class LayerWeights:
    """One layer: matrices with the first output row that each makes.

    ``q_norm``, ``k_norm`` (-1: none) and ``scale``, which queries are multiplied with, are offsets.
    """

    attention_norm: Norm
    qkv: Placed
    attention_output: Placed
    mlp_norm: Norm
    up: Placed
    down: Placed
    q_norm: int
    k_norm: int
    scale: int


@dataclass(frozen=True)
class ModelWeights:
    """The whole model in one arena; numbers without a type are offsets in it."""

    arena: npt.NDArray[np.uint8]
    type_bytes: dict[str, int]
    embedding: Matrix
    positions: int
    layers: list[LayerWeights]
    final_norm: Norm
    output: Matrix
    eps: int
    one: int
    frequencies: int


class _Finder:
    """Finds one model's tensors; knows names and shapes, and hands them to the packer."""

    def __init__(
        self, packer: Packer, names: Names, model: ModelSpec, spec: DecoderSpec, required: frozenset[str]
    ) -> None:
        self.packer, self.names, self.model, self.spec, self.required = packer, names, model, spec, required

    def norm(self, name: str) -> Norm:
        bias = name.removesuffix("weight") + "bias"
        width = self.model.width
        weight = self.packer.vector(name, width)
        return Norm(weight, self.packer.vector(bias, width) if self.spec.norm == "layer" else -1)

    def matrices(
        self,
        role: str,
        names: list[str],
        sizes: list[int],
        width: int,
        orders: list[Rows | None],
        target: str | None = None,
    ) -> Placed:
        """The matrix of a role, from its parts' names, numbers of rows and row orders."""
        packer = self.packer
        parts: list[Part] = []
        biases: list[int | None] = []
        for name, size, order in zip(names, sizes, orders, strict=True):
            is_embedding = role == "embedding"
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

    def layer(self, number: int, layer: LayerSpec) -> LayerWeights:
        names, model = self.names, self.model
        named = {
            field: getattr(names, field).format(n=number)
            for field in ("attention_norm", "attention_output", "mlp_norm", "down", "q_norm", "k_norm")
        }
        qkv, up = [name.format(n=number) for name in names.qkv], [name.format(n=number) for name in names.up]
        q_rows, kv_rows = layer.num_heads * layer.k_dim, layer.num_kv_heads * layer.k_dim
        sizes = [q_rows, kv_rows, kv_rows] if len(qkv) == 3 else [q_rows + 2 * kv_rows]
        paired: list[Rows | None] = [
            _paired(layer.num_heads, layer.k_dim),
            _paired(layer.num_kv_heads, layer.k_dim),
            None,
        ]
        as_stored: list[Rows | None] = [None] * len(qkv)
        orders = paired if names.has_paired_rows else as_stored
        has_qk_norm = self.spec.has_qk_norm
        return LayerWeights(
            attention_norm=self.norm(named["attention_norm"]),
            qkv=self.matrices("qkv", qkv, sizes, model.width, orders),
            attention_output=self.matrices(
                "attention_output", [named["attention_output"]], [model.width], q_rows, [None]
            ),
            mlp_norm=self.norm(named["mlp_norm"]),
            up=self.matrices("up", up, [model.mlp_width] * len(up), model.width, [None] * len(up)),
            down=self.matrices("down", [named["down"]], [model.width], model.mlp_width, [None]),
            q_norm=self.packer.vector(named["q_norm"], layer.k_dim) if has_qk_norm else -1,
            k_norm=self.packer.vector(named["k_norm"], layer.k_dim) if has_qk_norm else -1,
            scale=self.packer.constant((1 / np.sqrt(np.array([layer.k_dim], np.float32))).astype(np.float32)),
        )


def _paired(num_heads: int, dim: int) -> Rows:
    """Where the rows of (d, d + half) order stand in a file that keeps rotated pairs side by side."""
    return np.arange(num_heads * dim).reshape(num_heads, dim // 2, 2).swapaxes(1, 2).reshape(-1)


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
        UnsupportedError: a tensor's type isn't one that kvist runs.
    """
    names = family.huggingface if checkpoint.format == "huggingface" else family.gguf
    prefix = next((p for p in names.prefixes if p + names.embedding in checkpoint.tensors), names.prefixes[0])
    packer = Packer(checkpoint, weights, prefix)
    finder = _Finder(packer, names, model, spec, family.required_biases(checkpoint.config))
    wide = "q8_0" if weights == "q4" else None
    embedding = finder.matrices("embedding", [names.embedding], [model.vocab_size], model.width, [None], wide)[0][0]
    output = embedding
    if not model.is_tied:
        output = finder.matrices("embedding", [names.output], [model.vocab_size], model.width, [None], wide)[0][0]
    context = model.context_length
    positions = packer.vector(names.positions, context, columns=model.width) if names.positions else -1
    layers = [finder.layer(number, layer) for number, layer in enumerate(model.layers)]
    final_norm = finder.norm(names.final_norm)
    eps = packer.constant(np.array([spec.norm_eps], np.float32))
    one = packer.constant(np.ones(1, np.float32))
    turned = packer.constant(frequencies(spec.rope)) if spec.rope else -1
    arena = packer.fill(num_threads)
    return ModelWeights(
        arena, dict(packer.type_bytes), embedding, positions, layers, final_norm, output, eps, one, turned
    )
