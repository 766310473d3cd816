"""The matrices of latent attention, and how the one that expands latents is packed.

Attention is computed in its absorbed form (``kernels.latent``): a query is multiplied with its head's part of ``kv_b``
that makes keys, over that part's *rows*; so this half is packed turned, each head's [own, rank] as [rank, own]. The
half that makes values is packed as it stands. Both keep a float type of their own. Quantised rows are quantised along
the latent, the wrong way for the first half, so both become f16: 11 bits of precision are more than their codes have,
and the matrix is a hundredth of a model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from kvist.model import convert
from kvist.model.families import LatentNames, LatentSpec
from kvist.model.weights import Make, Matrix, Order, Packer, Placed, Rows, Stored
from kvist.spec.model import LayerSpec

Floats = npt.NDArray[np.float32]
Find = Callable[[str, list[str], list[int], int, list[Order | None]], Placed]
"""Places the matrix of a role, from its parts' names, numbers of rows, width, and row orders."""


@dataclass(frozen=True)
class LatentWeights:
    """One layer's: ``mixed`` makes queries, or their low-rank form, and from row ``latents`` on the latents.

    ``q_b`` makes queries of the low-rank form (empty: there is none). ``keys`` [heads * rank, own] and ``values``
    [heads * v_dim, rank] have a part for each head. ``q_norm``, ``kv_norm``, ``scale`` and ``eps`` are offsets.
    """

    mixed: Placed
    latents: int
    q_b: Placed
    keys: Matrix
    values: Matrix
    q_norm: int
    kv_norm: int
    scale: int
    eps: int


def find_latent(
    packer: Packer, find: Find, names: LatentNames, latent: LatentSpec, number: int, layer: LayerSpec, width: int
) -> LatentWeights:
    """Find and place a layer's matrices; ``width`` is the model's."""
    named = {field: getattr(names, field).format(n=number) for field in names.__dataclass_fields__}
    heads, kv_rows = layer.num_heads, latent.rank + latent.turned
    q_order, kv_order = _orders(latent, heads)
    q_rows = heads * (latent.own + latent.turned)
    low = latent.q_rank
    first, size, order = (named["q"], q_rows, q_order) if low is None else (named["q_a"], low, None)
    mixed = find("latent", [first, named["kv_a"]], [size, kv_rows], width, [order, kv_order])
    q_b = [] if low is None else find("q_b", [named["q_b"]], [q_rows], low, [q_order])
    keys, values = _expanding(packer, named, latent, heads)
    return LatentWeights(
        mixed=mixed,
        latents=-(-size // 16) * 16,
        q_b=q_b,
        keys=keys,
        values=values,
        q_norm=-1 if low is None else packer.vector(named["q_norm"], low),
        kv_norm=packer.vector(named["kv_norm"], latent.rank),
        scale=packer.constant(np.array([latent.scale], np.float32)),
        eps=packer.constant(np.array([latent.eps], np.float32)),
    )


def _orders(latent: LatentSpec, heads: int) -> tuple[Order | None, Order | None]:
    """Where rows of queries and latents stand in a file, so that rotated pairs come to lie half their width apart."""
    if not latent.is_interleaved:
        return None, None

    def of(heads: int, own: int) -> Rows:
        """``heads`` times rows of which those behind the first ``own`` are rotated."""
        turned = np.arange(latent.turned).reshape(-1, 2).T.reshape(-1)
        rows = np.concatenate([np.arange(own), own + turned])
        found: Rows = (np.arange(heads)[:, None] * rows.size + rows).reshape(-1)
        return found

    return partial(of, heads, latent.own), partial(of, 1, latent.rank)


def _expanding(packer: Packer, named: dict[str, str], latent: LatentSpec, heads: int) -> tuple[Matrix, Matrix]:
    """What makes keys and what makes values, from one matrix or two."""
    rank, own, v_dim = latent.rank, latent.own, latent.v_dim
    if named["k_b"] and packer.has(named["k_b"]):
        k_b = packer.stored(named["k_b"], (heads, rank, own))
        v_b = packer.stored(named["v_b"], (heads, v_dim, rank))
        keys, values = _rows_of(k_b, own, rank, 0, rank), _rows_of(v_b, rank, v_dim, 0, v_dim)
        forms = _form(packer, k_b.type), _form(packer, v_b.type)
    else:
        kv_b = packer.stored(named["kv_b"], (heads * (own + v_dim), rank))
        keys = _turned(_rows_of(kv_b, rank, own + v_dim, 0, own))
        values = _rows_of(kv_b, rank, own + v_dim, own, v_dim)
        forms = _form(packer, kv_b.type), _form(packer, kv_b.type)
    return (
        packer.made(forms[0], heads, rank, own, keys),
        packer.made(forms[1], heads, v_dim, rank, values),
    )


def _form(packer: Packer, stored_type: str) -> str:
    """A float type: the one that all matrices become, or else the file's own; f16 where that is none."""
    wanted = packer.converts_to or stored_type
    return wanted if wanted in convert.ELEMENT_BYTES else "f16"


def _rows_of(stored: Stored, width: int, stride: int, start: int, count: int) -> Make:
    """Of each head's ``stride`` stored rows, ``count`` from ``start`` on."""
    size = convert.row_bytes(stored.type, width)

    def make(head: int) -> Floats:
        at = (head * stride + start) * size
        return convert.to_f32(stored.raw[at : at + count * size].reshape(count, size), stored.type)

    return make


def _turned(make: Make) -> Make:
    """Each head's rows as columns."""
    return lambda head: make(head).T
