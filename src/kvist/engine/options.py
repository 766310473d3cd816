"""What a Python caller may say of a request besides its sampling, by name, and the request that comes of it."""

from __future__ import annotations

from typing import TypedDict

from kvist.engine.limit import OnLimit
from kvist.engine.request import Request, SamplingParams
from kvist.engine.values import plain_text, truth_value
from kvist.errors import RequestError, SpecError
from kvist.spec.retention import RetentionSpec, parse_retention


class RequestOptions(TypedDict, total=False):
    """What may be said of a request besides its sampling.

    ``cache`` False recomputes everything for every token. ``digest`` adds ``logits_sha256``. ``priority``: the higher
    the sooner, under that policy. Blocks are shared between requests of the same ``cache_salt``; ``reuse`` False shares
    none. ``explain`` adds the texts where a prompt parts from a cached one. ``retention`` (such as "sinks:4+1020") and
    ``on_limit`` are this request's own, else (or None) the model's; ``num_first`` tokens of the prompt are kept when
    the oldest are dropped.
    """

    cache: bool
    digest: bool
    priority: int
    cache_salt: str
    reuse: bool
    explain: bool
    retention: str | RetentionSpec | None
    on_limit: OnLimit | None
    num_first: int


def request_of(token_ids: tuple[int, ...], params: SamplingParams, more: RequestOptions) -> Request:
    """Return the request that ``more`` asks for.

    Raises:
        RequestError: an option isn't known, or is no such thing as it takes.
        SpecError: its retention isn't one.
    """
    check_options(more)
    return Request(
        token_ids,
        params,
        is_cached=truth_value("cache", more.get("cache", True)),
        has_digest=truth_value("digest", more.get("digest", False)),
        priority=more.get("priority", 0),
        salt=plain_text("cache_salt", more.get("cache_salt", "")),
        is_shared=truth_value("reuse", more.get("reuse", True)),
        explain=more.get("explain", False),
        retention=retention_of(more.get("retention")),
        on_limit=more.get("on_limit"),
        num_first=more.get("num_first", 0),
    )


def check_options(more: RequestOptions) -> None:
    """Raise RequestError for a name that isn't one of ``RequestOptions``: it would change nothing."""
    known = RequestOptions.__annotations__
    for name in more:
        if name not in known:
            raise RequestError(f'unknown option "{name}" of a request; known: {", ".join(known)}')


def retention_of(asked: object) -> RetentionSpec | None:
    """Return what a text or a spec asks to keep; None stays None. Raises SpecError for anything else."""
    if asked is None or isinstance(asked, RetentionSpec):
        return asked
    if isinstance(asked, str):
        return parse_retention(asked, "retention")
    raise SpecError(f'retention takes a text such as "sinks:4+1020", or a RetentionSpec, got {asked!r:.60}')
