"""What a sequence keeps of its tokens: the names, their numbers, and how many tokens each of them holds.

``all``          every token
``window:N``     the last N tokens, the query's own included
``sinks:S+N``    the first S tokens and the last N (StreamingLLM, Xiao et al., 2024)
``h2o:N``        N tokens, half of them the newest, half those attended most (H2O, Zhang et al., 2023)
``snapkv:N``     of the prompt the N tokens that its end attends to most (SnapKV, Li et al., 2024), and all that follow

What a query sees is a function of its position, the prompt's length and this spec, never of how tokens came in chunks.
Pure arithmetic; ``cache.retention`` chooses the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from kvist.errors import SpecError

Kind = Literal["all", "window", "sinks", "h2o", "snapkv"]
KINDS: tuple[Kind, ...] = get_args(Kind)

MAX_SINKS = 256
"""Sinks are one unit of the softmax, which holds this many tokens."""

MAX_KEPT = 1 << 40

H2O_PERIOD = 64
"""``h2o`` decides each time that so many tokens have come in: it holds N to N + H2O_PERIOD - 1 between two steps."""

OBSERVED_TOKENS = 32
"""The prompt's last tokens, whose attention ``snapkv`` goes by; they are kept themselves."""

FORMS = "all, window:N, sinks:S+N, h2o:N, snapkv:N"
_LEAST_SCORED = 64


def _range(kind: Kind) -> tuple[int, int]:
    """The least and the most tokens that a kind may keep."""
    least = {"all": 0, "h2o": _LEAST_SCORED, "snapkv": _LEAST_SCORED}.get(kind, 1)
    return least, 0 if kind == "all" else MAX_KEPT


def _rule(kind: Kind) -> str:
    least, most = _range(kind)
    return f"{kind} must keep between {least} and {most} tokens"


@dataclass(frozen=True)
class RetentionSpec:
    """One of the kinds with its numbers; ``str`` gives what ``parse_retention`` reads.

    ``num_kept`` is N, ``num_sinks`` S. Queries before position ``starts_at`` see everything: what a context that
    slides at its limit has (it is written ``sinks:S+N``, as it is the same from there on).
    """

    kind: Kind = "all"
    num_kept: int = 0
    num_sinks: int = 0
    starts_at: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SpecError(f'unknown kind of retention "{self.kind}"; known: {FORMS}')
        least, most = _range(self.kind)
        if not least <= self.num_kept <= most:
            raise SpecError(f"{_rule(self.kind)}, got {self.num_kept}")
        if self.kind == "sinks" and not 1 <= self.num_sinks <= MAX_SINKS:
            raise SpecError(
                f"sinks:S+N needs S between 1 and {MAX_SINKS} tokens, got {self.num_sinks}; without sinks it's window:N"
            )
        assert self.num_sinks == 0 or self.kind == "sinks", (self.kind, self.num_sinks)
        assert self.starts_at == 0 or self.kind in ("window", "sinks"), (self.kind, self.starts_at)

    def __str__(self) -> str:
        if self.kind == "all":
            return "all"
        return (
            f"{self.kind}:{self.num_sinks}+{self.num_kept}" if self.kind == "sinks" else f"{self.kind}:{self.num_kept}"
        )

    @property
    def identity(self) -> bytes:
        """What of this changes the K or V of a token that may be shared, for the hash of its block.

        Before ``starts_at`` nothing differs from keeping all, and after it nothing is shared.
        """
        return b"all" if self.starts_at else str(self).encode()

    @property
    def is_scored(self) -> bool:
        """Whether tokens are chosen by the attention they get; such a sequence shares no blocks."""
        return self.kind in ("h2o", "snapkv")

    @property
    def is_bounded(self) -> bool:
        """Whether what is held stops growing, and distances between a query and what it sees with it."""
        return self.kind in ("window", "sinks")

    def window_at(self, position: int) -> int | None:
        """The tokens before and with itself that a query at ``position`` sees besides sinks; None: all."""
        return self.num_kept if self.is_bounded and position >= self.starts_at else None

    def sinks_at(self, position: int) -> int:
        """The first tokens that a query at ``position`` sees as sinks."""
        return self.num_sinks if position >= self.starts_at else 0

    def next_stop(self, num_tokens: int, prompt_tokens: int) -> int | None:
        """The token count above ``num_tokens`` at which a pass must end, because something is decided there.

        ``prompt_tokens`` is the length of the request's prompt, whatever has been generated since. None: nowhere.
        """
        if self.kind == "h2o":
            first = self.num_kept + H2O_PERIOD
            return first if num_tokens < first else num_tokens + H2O_PERIOD - (num_tokens - first) % H2O_PERIOD
        if self.kind == "snapkv" and self.num_kept < prompt_tokens and num_tokens < prompt_tokens:
            return prompt_tokens
        return self.starts_at if num_tokens < self.starts_at else None

    def num_slots(self, num_tokens: int, prompt_tokens: int) -> int:
        """Slots that a sequence of ``num_tokens`` has between two steps: fewer where tokens were chosen and moved."""
        if self.kind == "h2o" and num_tokens >= self.num_kept + H2O_PERIOD:
            return self.num_kept + (num_tokens - self.num_kept) % H2O_PERIOD
        if self.kind == "snapkv" and num_tokens >= prompt_tokens > self.num_kept:
            return self.num_kept + num_tokens - prompt_tokens
        return num_tokens

    def num_dropped(self, num_tokens: int, prompt_tokens: int) -> int:
        """Tokens of a sequence of ``num_tokens`` that its last query didn't see, or the next one won't."""
        if self.is_scored:
            return num_tokens - self.num_slots(num_tokens, prompt_tokens)
        if not self.is_bounded or num_tokens <= self.starts_at:
            return 0
        return max(0, num_tokens - self.num_kept - self.num_sinks)

    @property
    def most_slots(self) -> int | None:
        """The most slots that any sequence has at once, where tokens are moved to the front; None: no bound."""
        return self.num_kept + H2O_PERIOD if self.kind == "h2o" else None

    def peak_slots(self, num_tokens: int, prompt_tokens: int) -> int:
        """The most slots that a sequence growing to ``num_tokens`` has at once."""
        if self.most_slots is not None:
            return min(num_tokens, self.most_slots)
        if self.kind == "snapkv":
            return max(min(num_tokens, prompt_tokens), self.num_slots(num_tokens, prompt_tokens))
        return num_tokens


ALL = RetentionSpec()


def parse_retention(text: str, option: str = "--retention") -> RetentionSpec:
    """Return what ``text`` asks for: all, window:N, sinks:S+N, h2o:N or snapkv:N.

    Raises:
        SpecError: it isn't one of these, or a number is out of its range.
    """
    name, colon, numbers = text.partition(":")
    kind = next((known for known in KINDS if known == name), None)
    if kind is None or (kind == "all" and colon):
        raise SpecError(f'unknown policy "{text}" for {option}; known: {FORMS}')
    if kind == "all":
        return ALL
    sinks, plus, kept = numbers.partition("+") if kind == "sinks" else ("0", "", numbers)
    if kind == "sinks" and not plus:
        raise SpecError(
            f"{option}: sinks:S+N keeps the first S tokens and the last N; +N, with N between 1 and {MAX_KEPT}, is "
            f'missing in "{text}"'
        )
    num_sinks, num_kept = _count(sinks), _count(kept)
    if num_sinks is None:
        raise SpecError(f'{option}: sinks:S+N needs S between 1 and {MAX_SINKS} tokens, got "{sinks}"')
    if num_kept is None:
        raise SpecError(f'{option}: {_rule(kind)}, got "{kept}"')
    try:
        return RetentionSpec(kind, num_kept, num_sinks)
    except SpecError as error:
        raise SpecError(f"{option}: {error}") from None


def _count(text: str) -> int | None:
    """Return a number of tokens; None for what is none, or has more digits than any that is allowed."""
    digits = text.lstrip("0") or text[:1]
    is_count = digits.isascii() and digits.isdigit() and len(digits) <= len(str(MAX_KEPT))
    return int(digits) if is_count else None
