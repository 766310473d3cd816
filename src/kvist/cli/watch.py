"""``kvist watch``: the cache while it works, in a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from kvist.cli import options
from kvist.cli.bench_run import EngineOptions
from kvist.cli.flatten import flattened
from kvist.cli.interrupt import Interrupt
from kvist.cli.output import EXIT_INTERRUPTED, Output, command
from kvist.cli.startup import loading
from kvist.errors import RequestError
from kvist.spec.cache import bytes_per_token, pool_bytes
from kvist.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvist.engine.files import ModelFiles
    from kvist.engine.request import Request
    from kvist.lab.watching import Frame
    from kvist.llm import LLM

Show = Callable[["Frame"], object]

DEFAULT_PROMPT = "What is a key-value cache?"
DEFAULT_TOKENS = 48
_LEAST_FRAME_S = 0.05
"""Frames are shown at least this far apart where nobody asked for --slow: a person can't follow more."""


@command
@flattened
def watch(
    *,
    model: options.Model = options.DEFAULT_MODEL,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            "-p", "--prompt", metavar="TEXT", help="A prompt; may be repeated: what they begin with alike is shared."
        ),
    ] = None,
    is_raw: Annotated[
        bool, typer.Option("--raw", help="Leave out the chat template, which is used where the model has one.")
    ] = False,
    max_tokens: Annotated[
        int, typer.Option("-n", "--max-tokens", metavar="N", min=1, help="Tokens to generate for each.")
    ] = DEFAULT_TOKENS,
    slow: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.0, help="Show what a pass does step by step, so long for each step."),
    ] = None,
    head: Annotated[int, typer.Option(metavar="N", min=0, help="The query head whose attention is shown.")] = 0,
    gap: Annotated[int, typer.Option(metavar="PASSES", min=0, help="Passes from one prompt to the next.")] = 4,
    engine: EngineOptions,
    is_json: options.Json = False,
) -> None:
    """Watch the cache at work: blocks, the token being computed, bytes, hits, and what one head attends to."""
    from kvist.engine.files import open_model
    from kvist.lab.watching import MOST_REQUESTS, Watch

    prompts = prompt or [DEFAULT_PROMPT]
    if len(prompts) > MOST_REQUESTS:
        raise RequestError(f"kvist watch shows at most {MOST_REQUESTS} prompts, got {len(prompts)}")
    out = Output(is_json)
    with open_model(model) as files:
        _check_head(files, head)
        requests = [_request(files, text, max_tokens, is_raw=is_raw) for text in prompts]
        with _load(files, engine, [len(one.token_ids) + max_tokens for one in requests]) as llm, Interrupt() as stop:
            watching = Watch(llm.engine, requests, head=head, gap=gap)
            with _screen(files, llm, engine, slow) if _is_terminal(is_json) else _lines(files, out) as show:
                last = None
                for frame in watching.frames():
                    if stop.is_set():
                        watching.cancel()
                    show(frame)
                    last = frame
            is_stopped = stop.is_set()
            stats = llm.engine.stats()
    assert last is not None
    _finish(out, last, stats.as_json())
    if is_stopped:
        sys.exit(EXIT_INTERRUPTED)


def _is_terminal(is_json: bool) -> bool:
    return sys.stdout.isatty() and not is_json


def _check_head(files: ModelFiles, head: int) -> None:
    num_heads = files.spec.layers[-1].num_heads
    if head >= num_heads:
        raise RequestError(f"--head must be from 0 to {num_heads - 1}, the last layer's query heads; got {head}")


def _request(files: ModelFiles, text: str, max_tokens: int, *, is_raw: bool) -> Request:
    from kvist.engine.request import Request, SamplingParams

    is_chat = files.has_template and not is_raw
    token_ids = files.encode_chat([{"role": "user", "content": text}]) if is_chat else files.encode(text)
    if len(token_ids) + max_tokens > files.spec.context_length:
        raise RequestError(
            f"{len(token_ids)} tokens of prompt and {max_tokens} to generate don't fit the context of "
            f"{files.spec.context_length}; give less to -n"
        )
    return Request(tuple(token_ids), SamplingParams(max_tokens=max_tokens))


def _load(files: ModelFiles, engine: EngineOptions, lengths: list[int]) -> LLM:
    """Load the model with a pool that holds all of them, so that its blocks can be shown."""
    from kvist.llm import LLM

    budget = sum(pool_bytes(files.spec, engine.cache, length, length) for length in lengths)
    with loading():
        return LLM(files, engine.weights, engine.cache, engine.threads, context=max(lengths), kv_budget=budget)


@contextmanager
def _lines(files: ModelFiles, out: Output) -> Iterator[Show]:
    """A line a pass, for pipes and files."""
    from kvist.cli.watch_view import line

    spell = files.require_tokenizer().token_text
    yield lambda frame: out.line(line(frame, spell))


@contextmanager
def _screen(files: ModelFiles, llm: LLM, engine: EngineOptions, slow_s: float | None) -> Iterator[Show]:
    """Frames in the terminal, each in the place of the one before."""
    from rich.console import Console
    from rich.live import Live

    from kvist.cli.watch_view import View, line, steps

    cache, spec, spell = engine.cache, files.spec, files.require_tokenizer().token_text
    codecs = cache.k_codec if cache.k_codec == cache.v_codec else f"{cache.k_codec}/{cache.v_codec}"
    token_bytes = format_bytes(bytes_per_token(spec, cache))
    about = f"{files.name}: {len(spec.layers)} layers, {token_bytes} a token ({codecs}), {llm.num_threads} threads"
    console = Console()
    view = View(about, spell, console.width)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:

        def show(frame: Frame) -> None:
            said = [line(frame, spell).split(" | ", maxsplit=1)[0]] if slow_s is None else steps(frame, spell)
            for sentence in said:
                live.update(view.render(frame, sentence), refresh=True)
                time.sleep(_LEAST_FRAME_S if slow_s is None else slow_s)

        yield show


def _finish(out: Output, last: Frame, stats: dict[str, object]) -> None:
    results: Iterable[dict[str, object]] = [
        {
            "request": letter,
            "text": result.text,
            "prompt_tokens": result.prompt_tokens,
            "cached_tokens": result.cached_tokens,
            "generated_tokens": result.generated_tokens,
            "ttft_s": result.ttft_s,
            "tpot_s": result.tpot_s,
        }
        for letter, result in last.results
    ]
    out.finish({"passes": last.number, "blocks": last.counts, "results": list(results), "stats": stats})
