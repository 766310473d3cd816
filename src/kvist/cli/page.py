"""``kvist report``: one page about the reader's own model and machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvist.cli import options
from kvist.cli.bench_run import BenchRun, EngineOptions
from kvist.cli.flatten import flattened
from kvist.cli.output import command
from kvist.cli.progress import progress_bar
from kvist.engine.cores import threads_to_use
from kvist.errors import KvistError

if TYPE_CHECKING:
    from kvist.lab.report.effort import Effort

Advance = Callable[[int], object]


@command
@flattened
def report(
    *,
    model: options.Model = options.DEFAULT_MODEL,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The page.")] = Path("report.html"),
    engine: EngineOptions,
    is_quick: Annotated[bool, typer.Option("--quick", help="Measure less: a minute instead of several.")] = False,
    is_json: options.Json = False,
) -> None:
    """Measure this model on this machine and write one page with figures: what the cache saves, takes and costs."""
    from kvist.lab.report.effort import QUICK, Effort
    from kvist.lab.report.page import render, write

    _check_output(output)
    run = BenchRun("report", is_quick=is_quick, is_json=is_json)
    figures = _measured(run, model, engine, QUICK if is_quick else Effort())
    if not figures["demonstration"]["identical"]:
        raise KvistError("the results differ with and without the cache; that is a bug in kvist, please report it")
    document = run.document({"figures": figures})
    write(render(document), output)
    run.out.notice(f"written to {output}")
    run.out.finish(document)


def _check_output(path: Path) -> None:
    """Raise KvistError where no page can be written, before minutes have gone by."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise KvistError(f'can\'t write a page into "{path}"; it has to end in .html')
    if not path.parent.is_dir():
        raise KvistError(f'can\'t write into "{path}"; there is no directory "{path.parent}"')


def _measured(run: BenchRun, model: str, engine: EngineOptions, effort: Effort) -> dict[str, Any]:
    """Measure everything; return each figure's data."""
    from kvist.cache.memory import available_memory
    from kvist.engine.files import open_model
    from kvist.lab.report import measure
    from kvist.llm import LLM
    from kvist.model.decoder import load_decoder

    cache, threads = engine.cache, threads_to_use(engine.threads)
    figures: dict[str, Any] = {}
    with open_model(model) as files:
        files.require_tokenizer()
        with closing(load_decoder(files.checkpoint, weights=engine.weights, threads=threads)) as decoder:
            weight_types = decoder.weight_types
            probe = run.begin("a report", model=files.name, threads=threads, cache=cache, weight_types=weight_types)
            steps, free = decoder.step_tokens, available_memory()
            with _part(run, "speed", sum(effort.lengths)) as advance:
                figures["roofline"] = measure.roofline(decoder, cache, probe, effort, advance)
            figures["memory"] = measure.memory(files.spec, cache, decoder.weights_bytes, steps, free)
            with _part(run, "requests", len(effort.arrivals)) as advance:
                figures["timeline"] = measure.timeline(decoder, cache, effort, advance)
            with _part(run, "smaller caches", None) as advance:
                figures["smaller"] = measure.smaller_caches(files, decoder, effort, advance)
        length = min(files.spec.context_length, effort.demo_tokens + 64)
        with (
            _part(run, "with the cache and without", effort.demo_tokens) as advance,
            LLM(files, engine.weights, cache, threads, context=length) as llm,
        ):
            figures["demonstration"] = measure.demonstration(llm, effort, advance)
    return figures | {"planned": measure.planned()}


@contextmanager
def _part(run: BenchRun, what: str, total: int | None) -> Iterator[Advance]:
    run.out.notice(f"measuring: {what}")
    with progress_bar(what, total) as advance:
        yield advance
