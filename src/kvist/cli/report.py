"""A result in words and as JSON: the same facts, sizes in binary units for people and in bytes for scripts."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kvist.engine.result import Result, TokenLogprobs
from kvist.units import format_bytes

if TYPE_CHECKING:
    from kvist.cache.explain import Miss
    from kvist.checkpoint.tokenizer import Tokenizer


def summary(result: Result) -> str:
    """Return the one line that follows an answer: prompt, time to first token, tokens, time per token, cache."""
    reused = f" ({result.cached_tokens} from the cache)" if result.cached_tokens else ""
    parts = [f"{result.prompt_tokens} prompt tokens{reused}"]
    if result.ttft_s is not None:
        parts.append(f"first token after {result.ttft_s:.3f} s")
    pace = "" if result.tpot_s is None else f", {1000 * result.tpot_s:.2f} ms each"
    parts.append(f"{result.generated_tokens} generated{pace}")
    if result.dropped_tokens:
        parts.append(f"{result.dropped_tokens} oldest tokens forgotten")
    if result.drafted_tokens:
        parts.append(f"{result.accepted_tokens} of {result.drafted_tokens} guessed tokens were right")
    parts.append(f"KV {format_bytes(result.kv.allocated_bytes)} of {format_bytes(result.kv.pool_bytes)} reserved")
    return " | ".join(parts)


def ending(result: Result, context_length: int) -> str | None:
    """Return what is worth saying about how the answer ended; None for an end of its own."""
    if result.finish_reason == "length":
        return f"ended at {result.generated_tokens} tokens; -n sets how many"
    if result.finish_reason == "context":
        return f"ended at the context's {context_length} tokens; --context or --kv-budget may allow more"
    return "interrupted" if result.finish_reason == "cancelled" else None


def document(result: Result, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return the result for --json."""
    found: dict[str, Any] = {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "prompt_tokens": result.prompt_tokens,
        "cached_tokens": result.cached_tokens,
        "generated_tokens": result.generated_tokens,
        "finish_reason": result.finish_reason,
        "forward_tokens": result.forward_tokens,
        "dropped_tokens": result.dropped_tokens,
        "queue_s": result.queue_s,
        "ttft_s": result.ttft_s,
        "tpot_s": result.tpot_s,
        "seed": result.seed,
        "num_preemptions": result.num_preemptions,
        "drafted_tokens": result.drafted_tokens,
        "accepted_tokens": result.accepted_tokens,
        "miss": None if result.miss is None else _miss(result.miss, tokenizer),
        "kv": asdict(result.kv),
    }
    if result.logprobs is not None:
        found["logprobs"] = [_position(entry, tokenizer) for entry in result.logprobs]
    if result.logits_sha256 is not None:
        found["logits_sha256"] = result.logits_sha256
    if result.choices:
        found["choices"] = [document(choice, tokenizer) for choice in result.choices]
    return found


def _miss(miss: Miss, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Why no more of the prompt was cached; with the texts around, where these were asked for."""
    found: dict[str, Any] = {"kind": miss.kind, "position": miss.position}
    if miss.kind == "evicted":
        found |= {"evicted_s": miss.evicted_s, "blocks_taken_since": miss.num_taken_since}
    if miss.ours:
        sides = {"shared": miss.shared, "ours": miss.ours, "theirs": miss.theirs}
        found |= {name: tokenizer.decode(list(ids)) if tokenizer else list(ids) for name, ids in sides.items()}
    return found


_MISS = {
    "off": "reuse is off",
    "never_stored": "nothing that goes on like it was stored",
    "differs": "what was stored differs from there on",
    "evicted": "the rest was evicted",
    "short": "the rest is in a block that another request is still filling",
}


def miss_line(result: Result, tokenizer: Tokenizer | None) -> str:
    """Return why no more of the prompt came from the cache, in words."""
    miss = result.miss
    if miss is None:
        return f"all of the prompt but its last token came from the cache ({result.cached_tokens} tokens)"
    found = _miss(miss, tokenizer)
    ago = f", {miss.evicted_s:.1f} s ago" if miss.evicted_s is not None else ""
    sides = f": after {found['shared']!r} comes {found['ours']!r}, not {found['theirs']!r}" if "ours" in found else ""
    return f"from the cache: the first {miss.position} tokens; {_MISS[miss.kind]}{ago}{sides}"


def _position(entry: TokenLogprobs, tokenizer: Tokenizer | None) -> dict[str, Any]:
    chosen = _token(entry.token_id, entry.logprob, tokenizer)
    return chosen | {"top": [_token(token_id, logprob, tokenizer) for token_id, logprob in entry.top]}


def _token(token_id: int, logprob: float, tokenizer: Tokenizer | None) -> dict[str, Any]:
    text = tokenizer.token_text(token_id) if tokenizer else None
    return {"token_id": token_id, "token": text, "logprob": logprob}


def logprob_lines(result: Result, tokenizer: Tokenizer | None) -> list[str]:
    """Return a line for each position: the chosen token, its log-probability, and the likeliest ones."""

    def shown(token_id: int, logprob: float) -> str:
        text = repr(tokenizer.token_text(token_id)) if tokenizer else str(token_id)
        return f"{text} {logprob:.3f}"

    lines = []
    for entry in result.logprobs or ():
        best = ", ".join(shown(token_id, logprob) for token_id, logprob in entry.top)
        lines.append(shown(entry.token_id, entry.logprob) + (f"   [{best}]" if best else ""))
    return lines
