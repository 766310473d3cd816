"""kvist: a language-model generation engine built around the KV cache.

The names below load on first use, so that planning imports no compiler and no model code.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvist.engine.async_engine import AsyncEngine as AsyncEngine
    from kvist.engine.request import Request as Request
    from kvist.engine.request import SamplingParams as SamplingParams
    from kvist.errors import KvistError as KvistError
    from kvist.llm import LLM as LLM
    from kvist.planner.plan import plan as plan
    from kvist.spec.cache import CacheSpec as CacheSpec
    from kvist.spec.model import ModelSpec as ModelSpec

__version__ = "0.1.0"

_HOME = {
    "AsyncEngine": "kvist.engine.async_engine",
    "CacheSpec": "kvist.spec.cache",
    "KvistError": "kvist.errors",
    "LLM": "kvist.llm",
    "ModelSpec": "kvist.spec.model",
    "Request": "kvist.engine.request",
    "SamplingParams": "kvist.engine.request",
    "plan": "kvist.planner.plan",
}
__all__ = ["LLM", "AsyncEngine", "CacheSpec", "KvistError", "ModelSpec", "Request", "SamplingParams", "plan"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'kvist' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
