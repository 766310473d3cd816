"""The arrays: one arena for all layers' keys and values, reserved for real and touched page by page.

Layout, per layer group, then per layer: for each KV head the keys of all blocks, then for each KV head the values of
all blocks. A head's neighbouring blocks are neighbours in memory, so that reading them is one stream. Inside a block K
is transposed, so that a vector of 16 scores needs no horizontal sum (``kernels.spans`` has the shapes). Knows no
sequences.
"""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvist.cache.cells import Places, key_cells, move, value_cells
from kvist.cache.memory import available_memory
from kvist.errors import CapacityError
from kvist.spec.cache import BLOCK_TOKENS, LayerGroup, head_key_bytes, head_value_bytes
from kvist.units import format_bytes

PAGE_BYTES = 4096


@dataclass(frozen=True)
class LayerPlace:
    """Byte offsets of one layer's blocks in the arena.

    The keys of head h in block b start at ``k + h * k_head + b * k_block``, its values likewise. ``group`` is the
    layer's.
    """

    group: int
    k: int
    k_head: int
    k_block: int
    v: int
    v_head: int
    v_block: int


class Store:
    """Blocks for each group: ``num_blocks[g]`` of ``groups[g]``. ``arena`` is flat uint8."""

    def __init__(self, groups: tuple[LayerGroup, ...], num_blocks: tuple[int, ...]) -> None:
        self.places: dict[int, LayerPlace] = {}
        size = 0
        for number, (group, count) in enumerate(zip(groups, num_blocks, strict=True)):
            layer = group.layer
            k_block = BLOCK_TOKENS * head_key_bytes(group.spec.k_codec, layer.k_dim)
            v_block = BLOCK_TOKENS * head_value_bytes(group.spec.v_codec, layer.v_dim)
            k_head, v_head = count * k_block, count * v_block
            for layer_number in group.layers:
                v = size + layer.num_kv_heads * k_head
                self.places[layer_number] = LayerPlace(number, size, k_head, k_block, v, v_head, v_block)
                size = v + layer.num_kv_heads * v_head
        self.arena = _reserve(size)
        self._cells = tuple(
            (key_cells(group.spec.k_codec, group.layer.k_dim), value_cells(group.spec.v_codec, group.layer.v_dim))
            for group in groups
        )
        self.halves = tuple(
            _halves(self.arena, self.places[group.layers[0]], len(group.layers), group.layer.num_kv_heads, count)
            for group, count in zip(groups, num_blocks, strict=True)
        )

    @property
    def num_bytes(self) -> int:
        return int(self.arena.nbytes)

    def copy_block(self, group: int, source: int, target: int, into: Store | None = None) -> None:
        """Copy a group's block, all layers and heads, onto another one, here or in a store of the same groups."""
        for mine, other in zip(self.halves[group], (into or self).halves[group], strict=True):
            other[:, :, target] = mine[:, :, source]

    def move_tokens(self, group: int, sources: Places, targets: Places) -> None:
        """Copy tokens, all layers and heads of a group, as they are: from (block, place in it) to another."""
        for half, cells in zip(self.halves[group], self._cells[group], strict=True):
            move(half, cells, sources, targets)


def _halves(
    arena: npt.NDArray[np.uint8], place: LayerPlace, num_layers: int, num_heads: int, num_blocks: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Views of a group's keys and values, [L, K, blocks, bytes of a head's block]; its layers stand one by one."""
    layer = num_heads * (place.k_head + place.v_head)
    k, v = (
        np.ndarray((num_layers, num_heads, num_blocks, block), np.uint8, arena, at, (layer, head, block, 1))
        for at, head, block in ((place.k, place.k_head, place.k_block), (place.v, place.v_head, place.v_block))
    )
    return k, v


def _map(num_bytes: int) -> mmap.mmap:
    """Memory of this process's own, in huge pages where the system has them: for memory that is shared it has none."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(-1, num_bytes)
    region = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages; small ones do
        region.madvise(mmap.MADV_HUGEPAGE)
    return region


def _reserve(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Return zeroed memory whose pages are all there; raises CapacityError where they aren't to be had."""
    free = available_memory()
    if free is not None and num_bytes > free:
        raise CapacityError(
            f"the cache needs {format_bytes(num_bytes)} and {format_bytes(free)} of memory are free; "
            "lower context or kv_budget, or free some"
        )
    try:
        region = _map(max(num_bytes, 1))
    except (OSError, OverflowError, ValueError) as error:
        raise CapacityError(
            f"the system gives no {format_bytes(num_bytes)} for the cache: {error}; lower context or kv_budget"
        ) from None
    arena = np.frombuffer(region, np.uint8, num_bytes)
    arena[::PAGE_BYTES] = 0
    return arena
