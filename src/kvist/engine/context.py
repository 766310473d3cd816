"""How long a context may be: as trained, and past that what a model's positions and its retention make of it."""

from __future__ import annotations

from kvist.errors import SpecError
from kvist.spec.retention import RetentionSpec


def check_context(context: int | None, trained: int, *, is_learned: bool) -> None:
    """Raise SpecError unless a model trained to ``trained`` tokens can compute a context of so many (None: trained).

    ``is_learned``: positions are learned, and there is none beyond.
    """
    if context is None or 1 <= context <= trained or (context > trained and not is_learned):
        return
    why = " as trained: it has learned no position beyond; on_limit slide goes on past it" if is_learned else ""
    most = f"from 1 to {trained} tokens," if is_learned else "at least 1 token,"
    raise SpecError(f"the context must be {most}{why}{',' if why else ''} got {context}")


def beyond_trained(context: int, trained: int, retention: RetentionSpec) -> str | None:
    """Return what to say where queries will see tokens further back than any in training; None where none do."""
    distance = min(context, retention.num_kept + retention.num_sinks) if retention.is_bounded else context
    if distance <= trained:
        return None
    return (
        f"the model was trained on contexts of {trained} tokens and may see {distance} here: past {trained} its "
        f"answers fall apart; keep a window (retention sinks:4+{max(1, trained - 4)}), or take on_limit slide"
    )
