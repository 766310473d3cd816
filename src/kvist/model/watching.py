"""What one query attended to, for those who watch: its softmax weights, computed anew in NumPy.

From the query as the pass left it and the keys as the cache has them, so they are what attention used, within rounding:
no promise about bits stands on this.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvist.cache.cells import key_cells
from kvist.cache.codec import CODECS, turn
from kvist.cache.sequence import Sequence
from kvist.kernels import span_bf16
from kvist.spec.cache import BLOCK_TOKENS
from kvist.spec.model import LayerSpec

Numbers = npt.NDArray[np.float32]


def read_query(work: npt.NDArray[np.uint8], at: int, layer: LayerSpec, codec: str) -> Numbers:
    """Return the query [D] that stands at byte ``at`` as it meets keys of ``codec``: scaled, and rotated if at all."""
    dim = layer.k_dim
    if codec == "f32" or (codec == "bf16" and not span_bf16.IS_PACKED):
        query: Numbers = work[at : at + 4 * dim].view(np.float32).copy()
        return query
    if codec == "bf16":
        halves: Numbers = (work[at : at + 2 * dim].view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return halves
    codes = work[at : at + dim].view(np.int8).astype(np.float32)
    scale = work[at + dim : at + dim + 4].view(np.float32)
    turned: Numbers = turn((codes * scale)[np.newaxis])[0]
    return turned


def read_keys(sequence: Sequence, layer_number: int, kv_head: int) -> tuple[list[int], Numbers]:
    """Return the positions whose keys a sequence holds in a layer, and one head's keys [T, D]."""
    cache = sequence.cache
    place = cache.store.places[layer_number]
    group, table = cache.groups[place.group], sequence.tables[place.group]
    codec, dim = group.spec.k_codec, group.layer.k_dim
    blocks = cache.store.halves[place.group][0][group.layers.index(layer_number), kv_head][table.held]
    parts = []
    for cell in key_cells(codec, dim):
        tokens = np.ascontiguousarray(cell.view(blocks)[:, 0].swapaxes(1, 2))  # [blocks, 16, count]
        parts.append(tokens.reshape(-1, cell.count).view(np.uint8))
    positions = [BLOCK_TOKENS * number + place for number in table.numbers for place in range(BLOCK_TOKENS)]
    keys = CODECS[codec].decode_keys(np.concatenate(parts, axis=1))
    written = [at for at, position in enumerate(positions) if position < sequence.num_tokens]
    return [positions[at] for at in written], keys[written]


def softmax_weights(query: Numbers, positions: list[int], keys: Numbers, window: int | None) -> list[tuple[int, float]]:
    """Return (position, weight) of each token that the newest one's ``query`` sees."""
    first = 0 if window is None else positions[-1] + 1 - window
    seen = [at for at, position in enumerate(positions) if position >= first]
    scores = keys[seen].astype(np.float64) @ query.astype(np.float64)
    powers = np.exp(scores - scores.max())
    return [(positions[at], float(weight)) for at, weight in zip(seen, powers / powers.sum(), strict=True)]
