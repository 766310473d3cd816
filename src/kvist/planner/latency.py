"""How fast, at best: the time to read what a step reads, or to multiply what it multiplies, whichever is longer.

A roofline, so a bound: engines reach 0.6 to 0.8 of the bandwidth when they decode. Kernels' launches, sampling and
what ranks say to each other are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvist.planner.hardware import Device
from kvist.planner.weight_types import step_bytes
from kvist.spec.cache import LayerGroup
from kvist.spec.footprint import Footprint
from kvist.spec.model import LayerSpec, ModelSpec
from kvist.spec.parameters import Parameters

MAX_BATCH = 1 << 16


@dataclass(frozen=True)
class Roofline:
    """A model on a device: ``num_ranks`` of them read and multiply together.

    ``weight_scale`` is the weights' real size over what their type says, where files told it.
    """

    footprint: Footprint
    parameters: Parameters
    weight_type: str
    device: Device
    num_ranks: int = 1
    weight_scale: float = 1.0

    @property
    def model(self) -> ModelSpec:
        return self.footprint.model

    @property
    def bandwidth(self) -> float:
        """Bytes a second, all ranks together."""
        return self.device.bandwidth.value * self.num_ranks

    @property
    def peak(self) -> float | None:
        """Operations a second, all ranks together; None where the device's isn't known."""
        figure = self.device.peak(self.weight_type)
        return figure.value * self.num_ranks if figure else None

    def cache_read_bytes(self, num_tokens: int) -> int:
        """Bytes of one sequence's cache that its next token reads; a recurrent state is also written.

        Every rank reads its own part, replicated heads too.
        """
        rank = self.footprint.on_rank(self.num_ranks)
        return (rank.read_bytes(num_tokens) + rank.state_bytes) * self.num_ranks

    def weight_read_bytes(self, num_tokens: int) -> float:
        """Bytes of weights that a step of ``num_tokens`` rows reads."""
        return step_bytes(self.parameters, self.weight_type, num_tokens) * self.weight_scale

    def decode_bytes(self, num_sequences: int, num_tokens: int) -> float:
        """Bytes that a step reads: the weights once, and every sequence's cache."""
        return self.weight_read_bytes(num_sequences) + num_sequences * self.cache_read_bytes(num_tokens)

    def decode_operations(self, num_sequences: int, num_tokens: int) -> float:
        """Operations of a step, two a multiply-add."""
        return num_sequences * (2 * self.parameters.multiplied + self._attention(num_tokens))

    def tpot_s(self, num_sequences: int, num_tokens: int) -> float:
        """Seconds of a decode step, so of each user's next token."""
        reading = self.decode_bytes(num_sequences, num_tokens) / self.bandwidth
        return max(reading, self._seconds(self.decode_operations(num_sequences, num_tokens)))

    def prefill_operations(self, num_tokens: int) -> float:
        """Operations to read a prompt; only its last position needs the output matrix."""
        table = self.parameters.output or self.parameters.embedding
        matrices = 2 * (self.parameters.multiplied - table) * num_tokens + 2 * table
        return matrices + sum(
            _prefill_pairs(self._seen(layer, num_tokens), num_tokens) * _pair_operations(layer)
            for layer in self.model.layers
        )

    def ttft_s(self, num_tokens: int) -> float:
        """Seconds from a prompt to its first token, nothing cached."""
        reading = self.weight_read_bytes(num_tokens) / self.bandwidth
        return max(reading, self._seconds(self.prefill_operations(num_tokens)))

    def compute_bound_at(self, num_tokens: int) -> int | None:
        """The batch from which a decode step is bound by multiplying; None: never (or nobody knows the peak)."""
        if self.peak is None or not self._is_compute_bound(MAX_BATCH, num_tokens):
            return None
        low, high = 0, MAX_BATCH
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._is_compute_bound(middle, num_tokens) else (middle, high)
        return high

    def knee(self, num_tokens: int) -> int:
        """The batch at which the caches read as much as the weights: more users cost each of them half its speed."""
        cache = self.cache_read_bytes(num_tokens)
        low, high = 0, MAX_BATCH
        while high - low > 1:
            middle = (low + high) // 2
            is_below = self.weight_read_bytes(middle) > middle * cache
            low, high = (middle, high) if is_below else (low, middle)
        return high

    def _is_compute_bound(self, num_sequences: int, num_tokens: int) -> bool:
        reading = self.decode_bytes(num_sequences, num_tokens) / self.bandwidth
        return self._seconds(self.decode_operations(num_sequences, num_tokens)) >= reading

    def _seconds(self, operations: float) -> float:
        return operations / self.peak if self.peak else 0.0

    def _attention(self, num_tokens: int) -> int:
        return sum(self._seen(layer, num_tokens) * _pair_operations(layer) for layer in self.model.layers)

    def _seen(self, layer: LayerSpec, num_tokens: int) -> int:
        """The most tokens that a query of a sequence sees in a layer, which may read another one's cache."""
        if layer.kind not in ("full", "window", "chunked", "mla"):
            return 0
        return LayerGroup(layer, (), self.footprint.spec).num_seen_tokens(num_tokens, self.footprint.prompt_tokens)


def _prefill_pairs(seen: int, num_tokens: int) -> int:
    """Pairs of query and key in a causal prompt whose last query sees ``seen`` tokens."""
    return seen * (seen + 1) // 2 + (num_tokens - seen) * seen


def _pair_operations(layer: LayerSpec) -> int:
    """Operations for one query and one key, all heads: the score and the weighted value."""
    v_dim = layer.k_dim if layer.kind == "mla" else layer.v_dim
    return 2 * layer.num_heads * (layer.k_dim + v_dim)
