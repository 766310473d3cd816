"""Every byte that one sequence keeps, layer kind by layer kind: what ``kvist plan`` prints.

Stands on the groups of ``spec.cache``, so that a plan, a reservation and a gauge can't disagree; adds what has no
block table: recurrent state, and the keys and values over an encoder's output.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvist.spec.cache import KVIST, CacheSpec, LayerGroup, Price, layer_groups, num_blocks, pool_bytes
from kvist.spec.model import ModelSpec

STEP_TOKENS = 256
"""The most tokens of one sequence that enter the engine in one step; a window's slack follows from it."""


@dataclass(frozen=True)
class Footprint:
    """The cache of one sequence of a model, at the prices of some engine.

    ``encoder_tokens`` None takes the model's own. ``prompt_tokens`` are a sequence's prompt (None: all of it), on which
    depends what ``snapkv`` keeps.
    """

    model: ModelSpec
    spec: CacheSpec
    state_codec: str = "f32"
    encoder_tokens: int | None = None
    price: Price = KVIST
    prompt_tokens: int | None = None

    @property
    def groups(self) -> tuple[LayerGroup, ...]:
        return layer_groups(self.model, self.spec, self.price)

    @property
    def full_bytes_per_token(self) -> int:
        """Bytes that every token keeps for as long as the sequence lives."""
        return sum(group.token_bytes for group in self.groups if group.most_seen_tokens is None)

    @property
    def window_bytes_per_token(self) -> dict[int, int]:
        """Bytes that a token keeps while it is in a window (or chunk), by the most tokens seen, sinks among them."""
        sizes: dict[int, int] = {}
        for group in self.groups:
            if group.most_seen_tokens is not None:
                sizes[group.most_seen_tokens] = sizes.get(group.most_seen_tokens, 0) + group.token_bytes
        return dict(sorted(sizes.items()))

    @property
    def state_bytes(self) -> int:
        """Bytes of recurrent state and convolution columns."""
        states = [layer.state for layer in self.model.layers if layer.state]
        return sum(state.num_bytes(self.state_codec, self.price.conv_element_bytes) for state in states)

    @property
    def cross_bytes(self) -> int:
        """Bytes of the keys and values over the encoder's output."""
        return self.num_encoder_tokens * self.cross_token_bytes

    @property
    def cross_token_bytes(self) -> int:
        """Bytes of one encoder token in all layers."""
        layers = self.model.layers
        kept = self.spec.of_layers(len(layers))
        return sum(spec.cross_token_bytes(layer, self.price) for layer, spec in zip(layers, kept, strict=True))

    @property
    def num_encoder_tokens(self) -> int:
        return self.model.encoder_tokens if self.encoder_tokens is None else self.encoder_tokens

    @property
    def constant_bytes(self) -> int:
        """Bytes that don't depend on the sequence's length."""
        return self.state_bytes + self.cross_bytes

    def sequence_bytes(self, num_tokens: int) -> int:
        """The most bytes that a sequence of ``num_tokens`` has in use at once, unrounded.

        A window counts whole, the query's own token included: full x T + sum(window x min(T, W)) + constant.
        """
        tokens = sum(group.token_bytes * group.num_seen_tokens(num_tokens, self.prompt_tokens) for group in self.groups)
        return tokens + self.constant_bytes

    def read_bytes(self, num_tokens: int) -> int:
        """Bytes that the last token of a sequence of ``num_tokens`` reads: what was moved out for good isn't there."""
        tokens = sum(group.token_bytes * group.num_read_tokens(num_tokens, self.prompt_tokens) for group in self.groups)
        return tokens + self.constant_bytes

    def allocated_bytes(self, num_tokens: int) -> int:
        """Bytes that a sequence of ``num_tokens`` holds of kvist's pool, in whole blocks.

        ``spec.cache.allocated_bytes`` is what it holds between two steps; where a window or chunk has just closed, the
        blocks that the last token still saw count here.
        """
        total = self.constant_bytes
        for group in self.groups:
            seen = num_blocks(group.num_seen_tokens(num_tokens, self.prompt_tokens))
            blocks = max(group.num_blocks(num_tokens, self.prompt_tokens), seen)
            total += group.block_bytes * blocks
        return total

    def reserved_bytes(self, num_tokens: int) -> int:
        """Bytes of pool that let a sequence grow to ``num_tokens``: blocks, and a window's slack of one step."""
        return pool_bytes(self.model, self.spec, num_tokens, STEP_TOKENS) + self.constant_bytes

    def on_rank(self, num_ranks: int) -> Footprint:
        """Return what one of ``num_ranks`` tensor-parallel ranks keeps of each sequence."""
        return replace(self, model=self.model.on_rank(num_ranks))
