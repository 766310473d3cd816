"""How many numbers a model's weights are, and which of them a token uses.

Knows no configs: ``spec.weights`` counts them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Parameters:
    """Counts of parameters by their part in a step.

    ``embedding`` is the table of which a token reads one row (and the whole, as the output matrix, where the two
    are tied), ``output`` an output matrix of its own, ``body`` everything that every token uses, ``experts`` all
    routed experts, of which a token uses ``experts_per_token`` in ``num_experts``.
    """

    embedding: int
    output: int
    body: int
    experts: int = 0
    num_experts: int = 1
    experts_per_token: int = 1

    @property
    def total(self) -> int:
        return self.embedding + self.output + self.body + self.experts

    @property
    def active(self) -> int:
        """Parameters that one token uses, the embedding table counted whole as model cards do."""
        return self.embedding + self.output + self.body + self.experts * self.experts_per_token // self.num_experts

    @property
    def multiplied(self) -> int:
        """Parameters that one token is multiplied with: all active ones but a table that is only looked up."""
        return self.active - (self.embedding if self.output else 0)
