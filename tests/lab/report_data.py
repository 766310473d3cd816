"""A report's document without a model: arithmetic where a report has it, plausible figures where it measures."""

from __future__ import annotations

from itertools import count
from typing import Any

from fakes.decoder import FakeDecoder

from kvist.lab.report import measure
from kvist.lab.report.effort import Effort
from kvist.spec.cache import CacheSpec
from kvist.spec.model import LayerSpec, ModelSpec

MODEL = ModelSpec("llama", 49152, 576, 1536, 8192, tuple(LayerSpec("full", 9, 3, 64, 64) for _ in range(30)))
WEIGHTS_BYTES = 96_000_000
EFFORT = Effort(arrivals=((0, 64, 20), (5, 32, 20), (10, 400, 5), (12, 16, 10)))


def document() -> dict[str, Any]:
    """Return a whole report."""
    return {
        "bench": "report",
        "quick": True,
        "model": "smollm2-135m",
        "threads": 2,
        "kv": {"k": "bf16", "v": "bf16"},
        "retention": "all",
        "weight_types": {"q4_1": 90_000_000},
        "read_bandwidth": 19e9,
        "int_dot_peak": 1.2e12,
        "matmul_rate": 0.9e12,
        "matmul_factor": 0.7,
        "figures": {
            "demonstration": demonstration(),
            "memory": measure.memory(MODEL, CacheSpec(), WEIGHTS_BYTES, 256, 1 << 28),
            "roofline": roofline(),
            "smaller": smaller(),
            "timeline": timeline(),
            "planned": measure.planned(),
        },
        "machine": {
            "processor": "A processor <of some make>",
            "processors": 2,
            "last_level_cache_bytes": 1 << 25,
            "memory_bytes": 1 << 34,
            "system": "Linux 6 x86_64",
            "versions": dict.fromkeys(("python", "kvist", "numpy", "numba", "llvmlite"), "1.0"),
        },
    }


def demonstration() -> dict[str, Any]:
    positions = list(range(7, 67))
    cached = [0.02, *(0.004 + 1e-6 * position for position in positions[1:])]
    uncached = [0.02, *(0.0004 * position for position in positions[1:])]
    return {
        "prompt_tokens": 7,
        "generated_tokens": len(positions),
        "cached_s": sum(cached),
        "uncached_s": sum(uncached),
        "ratio": sum(uncached) / sum(cached),
        "identical": True,
        "logits_sha256": "0" * 64,
        "cached_forward_tokens": 66,
        "uncached_forward_tokens": sum(positions),
        "positions": positions,
        "cached_token_s": cached,
        "uncached_token_s": uncached,
        "cached_spread": {"median_s": 0.3, "p10_s": 0.3, "p90_s": 0.3, "repeats": 3},
    }


def roofline() -> dict[str, Any]:
    point = measure.point
    return {
        "read_bandwidth": 19e9,
        "int_dot_peak": 1.2e12,
        "matmul_rate": 0.9e12,
        "is_integer": True,
        "points": [
            point("decode", 64, 1, 270_000_000, 97_000_000, 0.0065),
            point("decode", 2048, 1, 270_000_000, 144_000_000, 0.0105),
            point("users", 76, 16, 16 * 270_000_000, 124_000_000, 0.0150),
            point("prefill", 64, 1, 13_700_000_000, 97_000_000, 0.024),
            point("prefill", 2048, 1, 435_000_000_000, 1_100_000_000, 0.62),
        ],
    }


def smaller() -> dict[str, Any]:
    def row(codec: str, retention: str, size: int, kl: float) -> dict[str, Any]:
        return {
            "k": codec,
            "v": codec,
            "keep_layers": [],
            "retention": retention,
            "bytes_per_token": size // 1024,
            "bytes": size,
            "perplexity": 20.0,
            "perplexity_change": kl / 2,
            "kl_mean": kl,
            "kl_p99": 10 * kl,
            "top1_agreement": 1 - kl,
            "tpot_s": 0.006,
            "needle": None,
            "needle_depths": [],
        }

    mib = 1 << 20
    return {
        "context": 1024,
        "compared_tokens": 2046,
        "text_digest": "0" * 10,
        "rows": [
            row("bf16", "all", 23 * mib, 0.00002),
            row("int8", "all", 12 * mib, 0.0004),
            row("int4", "all", 6 * mib, 0.03),
            row("bf16", "window:256", 6 * mib, 0.4),
            row("bf16", "sinks:4+252", 6 * mib, 0.1),
        ],
    }


def timeline() -> dict[str, Any]:
    """Of the fake model, with a clock that goes on by a millisecond at each look."""
    ticks = count()
    decoder = FakeDecoder(MODEL, step_tokens=64)
    return measure.timeline(decoder, CacheSpec(), EFFORT, clock=lambda: 1e-3 * next(ticks))  # type: ignore[arg-type]
