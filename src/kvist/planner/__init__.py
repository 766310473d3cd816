"""Capacity and latency from a model's config: imports ``spec`` alone, no weights, no compiler."""
