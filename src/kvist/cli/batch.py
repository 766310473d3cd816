"""``kvist batch``: a file of requests into a file of results, many at once, taken up again where it was broken off."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvist.cli import options
from kvist.cli.flatten import flattened
from kvist.cli.output import Output, command
from kvist.cli.progress import progress_bar
from kvist.errors import RequestError

if TYPE_CHECKING:
    from kvist.llm import LLM
    from kvist.openai.batch import Totals
    from kvist.openai.batch_results import ResultFile


@command
@flattened
def batch(
    *,
    requests: Annotated[
        Path, typer.Argument(metavar="REQUESTS", help="Requests as OpenAI's batches have them, one a line.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where to append the results.")],
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="A name (see kvist models), a path, or hf:ORG/NAME[:FILE].")
    ] = options.DEFAULT_MODEL,
    in_flight: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Requests under way at once. Default: 256.")
    ] = None,
    loading: options.LoadOptions,
    is_json: options.Json = False,
) -> None:
    """Answer a file of requests, many at once. Run again, it skips what has a result; a bad line stops no other."""
    from kvist.engine.files import open_model
    from kvist.openai.batch_lines import count_lines
    from kvist.openai.batch_results import ResultFile

    out = Output(is_json)
    num_lines = count_lines(requests)
    if output.exists() and output.samefile(requests):
        raise RequestError(f'"{output}" is the file of requests; give -o another one')
    with open_model(model) as files:
        files.require_tokenizer()
        shortfall = loading.shortfall(files, loading.capacity(files))
        with ResultFile(output) as results:
            if results.num_repaired:
                out.notice(f'the last line of "{output}" was torn and is cut off')
            if shortfall:
                out.notice(shortfall)
            with loading.load(files) as llm:
                facts = _run(out, llm, requests, num_lines, results, in_flight)
    out.finish({"model": model, "requests_file": str(requests), "results_file": str(output), **facts})


def _run(
    out: Output, llm: LLM, requests: Path, num_lines: int, results: ResultFile, in_flight: int | None
) -> dict[str, Any]:
    from kvist.openai.batch import DEFAULT_IN_FLIGHT, BatchRun

    started = time.perf_counter()
    try:
        with progress_bar("requests", num_lines) as advance:
            run = BatchRun(llm.engine, llm.files, results, in_flight or DEFAULT_IN_FLIGHT, on_line=advance)
            totals = run.run(requests)
    except KeyboardInterrupt:
        out.notice("interrupted; the same command goes on where this one was")
        raise
    facts = _facts(totals, num_lines, time.perf_counter() - started)
    out.line(_summary(facts))
    return facts | {"stats": llm.stats().as_json()}


def _facts(totals: Totals, num_lines: int, wall_s: float) -> dict[str, Any]:
    return {
        "requests": num_lines,
        "skipped": totals.num_skipped,
        "succeeded": totals.num_succeeded,
        "failed": totals.num_failed,
        "prompt_tokens": totals.prompt_tokens,
        "cached_tokens": totals.cached_tokens,
        "generated_tokens": totals.generated_tokens,
        "wall_s": wall_s,
        "generated_tokens_per_s": totals.generated_tokens / wall_s,
    }


def _summary(facts: dict[str, Any]) -> str:
    parts = [f"{facts['requests']} requests: {facts['succeeded']} answered"]
    if facts["failed"]:
        parts.append(f"{facts['failed']} failed (their lines say why)")
    if facts["skipped"]:
        parts.append(f"{facts['skipped']} had a result")
    tokens = f"{facts['prompt_tokens']} prompt tokens ({facts['cached_tokens']} from the cache)"
    return (
        f"{', '.join(parts)} | {tokens}, {facts['generated_tokens']} generated in {facts['wall_s']:.1f} s, "
        f"{facts['generated_tokens_per_s']:.0f} a second"
    )
