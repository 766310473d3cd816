"""``kvist bench long``: a text far longer than the model was trained on, with sinks and a window."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from kvist.cli import options
from kvist.cli.bench_run import BenchRun, EngineOptions, Quick
from kvist.cli.bench_serving import bench_app
from kvist.cli.flatten import flattened
from kvist.cli.output import Output, command
from kvist.cli.progress import progress_bar
from kvist.cli.prompt import read_text
from kvist.engine.cores import threads_to_use
from kvist.errors import RequestError, SpecError
from kvist.spec.cache import bytes_per_token
from kvist.spec.retention import RetentionSpec, parse_retention
from kvist.units import format_bytes

__all__ = ["bench_app"]

if TYPE_CHECKING:
    from kvist.engine.files import ModelFiles
    from kvist.lab.bench_long import Mark, Segment

_CHARACTERS_A_TOKEN = 8
_QUICK = {"tokens": 3_000, "segment": 1_000, "probes": 4, "generate": 1_000}
_QUICK_RETENTION = "sinks:4+252"
_SEGMENTS = (
    "Perplexity",
    f"{'tokens':>15} {'streamed':>9} {'no sinks':>9} {'at the probes: streamed':>24} {'recomputed':>11} {'ratio':>7}",
)
_MARKS = ("Generated", f"{'tokens':>15} {'cache':>12} {'process':>12} {'tokens/s':>9}")
T = TypeVar("T")


@bench_app.command("long", epilog="Example: kvist bench long --tokens 100000 --retention sinks:4+1020")
@command
@flattened
def bench_long(
    *,
    model: options.Model = options.DEFAULT_MODEL,
    text: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The text; - is stdin. Default: the standard library's documentation."),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(metavar="N", min=2, help="How much of the text. Default: 100000.")
    ] = None,
    segment: Annotated[
        int | None, typer.Option(metavar="N", min=2, help="Tokens of a line of the table. Default: 10000.")
    ] = None,
    probes: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Positions of a segment computed anew. Default: 10.")
    ] = None,
    generate: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Tokens to generate after it. Default: as many as the text.")
    ] = None,
    retention: Annotated[str | None, typer.Option(metavar="POLICY", help="sinks:S+N. Default: sinks:4+1020.")] = None,
    engine: EngineOptions,
    is_quick: Quick = False,
    is_json: options.Json = False,
) -> None:
    """Predict a long text with sinks and a window, beside other ways; then generate as long, in constant memory."""
    from kvist.engine.files import open_model
    from kvist.lab import bench_long as lab
    from kvist.model.decoder import load_decoder

    run = BenchRun("long", is_quick=is_quick, is_json=is_json)
    num_tokens = tokens or (_QUICK["tokens"] if is_quick else lab.DEFAULT_TOKENS)
    per_line = segment or (_QUICK["segment"] if is_quick else lab.SEGMENT_TOKENS)
    num_probes = probes or (_QUICK["probes"] if is_quick else lab.PROBES)
    num_generated = (_QUICK["generate"] if is_quick else num_tokens) if generate is None else generate
    kept = _sinks(retention or (_QUICK_RETENTION if is_quick else lab.DEFAULT_RETENTION))
    spec, threads = replace(engine.cache, retention=kept), threads_to_use(engine.threads)
    with open_model(model) as files:
        token_ids = _text(files, text, num_tokens)
        with closing(load_decoder(files.checkpoint, weights=engine.weights, threads=threads)) as decoder:
            what = f"a text of {num_tokens} tokens with {kept}"
            run.begin(what, model=files.name, threads=threads, cache=spec, weight_types=decoder.weight_types)
            with progress_bar("text", None) as advance:
                walk = lab.LongText(decoder, spec, token_ids, advance)
                segments = _shown(run.out, _SEGMENTS, _segment_line, walk.segments(per_line, num_probes))
            with progress_bar("answer", num_generated) as advance:
                prompt = token_ids[: kept.num_sinks + kept.num_kept]
                found = lab.generate_long(decoder, spec, prompt, num_generated, on_tokens=advance)
                marks = _shown(run.out, _MARKS, _mark_line, found) if num_generated else []
    measured = {
        "tokens": len(token_ids),
        "trained_context": files.spec.context_length,
        "bytes_per_token": bytes_per_token(files.spec, spec),
        "segments": [one.as_json() for one in segments],
        "generated": [mark.as_json() for mark in marks],
    }
    run.finish((), measured)


def _sinks(text: str) -> RetentionSpec:
    kept = parse_retention(text)
    if kept.kind != "sinks":
        raise SpecError(f'kvist bench long compares sinks:S+N with what it would be without, got "{text}"')
    return kept


def _text(files: ModelFiles, source: str | None, num_tokens: int) -> list[int]:
    from kvist.lab.texts import library_text

    text = library_text(_CHARACTERS_A_TOKEN * num_tokens) if source is None else read_text(source)
    token_ids = files.encode(text)[:num_tokens]
    if len(token_ids) < num_tokens:
        raise RequestError(f"the text has {len(token_ids)} tokens and {num_tokens} are wanted; give a longer one")
    return token_ids


def _shown(out: Output, heading: tuple[str, ...], line: Callable[[T], str], found: Iterable[T]) -> list[T]:
    """Show a line for each of ``found`` as soon as it is there: all of them take long. Return them."""
    for text in heading:
        out.line(text)
    shown = []
    for one in found:
        out.line(line(one))
        shown.append(one)
    return shown


def _segment_line(one: Segment) -> str:
    return (
        f"{one.first_token + one.num_tokens:>15,} {one.streamed:>9.3f} {one.without_sinks:>9.1f}"
        f" {_told(one.probed_streamed):>24} {_told(one.probed_recomputed):>11} {_told(one.ratio):>7}"
    )


def _told(number: float | None) -> str:
    return "-" if number is None else f"{number:.3f}"


def _mark_line(mark: Mark) -> str:
    resident = "-" if mark.resident_bytes is None else format_bytes(mark.resident_bytes)
    pace = mark.num_tokens / mark.elapsed_s
    return f"{mark.num_tokens:>15,} {format_bytes(mark.allocated_bytes):>12} {resident:>12} {pace:>9.0f}"
