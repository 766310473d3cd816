"""``kvist eval``: what each way of keeping the cache takes, and what it costs in quality and speed."""

from __future__ import annotations

from contextlib import ExitStack, closing
from functools import partial
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvist.cli import options
from kvist.cli.eval_options import KeepOptions, TextOptions
from kvist.cli.flatten import flattened
from kvist.cli.output import Output, command
from kvist.cli.progress import progress_bar
from kvist.cli.prompt import read_text
from kvist.engine.cores import threads_to_use
from kvist.errors import RequestError
from kvist.spec.cache import CacheSpec
from kvist.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvist.engine.files import ModelFiles
    from kvist.lab.quality import Models, Work
    from kvist.lab.quality_rows import Row

_TIMES = ("once", "skip", "again")
_CHARACTERS_A_TOKEN = 8  # more than any vocabulary takes on average, so that the text is long enough
_HEADING = (
    f"{'K/V':<12} {'kept':<14} {'a token':>10} {'sequence':>11} {'perplexity':>10} {'change':>8} {'KL mean':>9}"
    f" {'KL p99':>9} {'top-1':>7} {'decode':>9} {'needle':>7}"
)


@command
@flattened
def evaluate(
    *,
    model: options.Model = options.DEFAULT_MODEL,
    keeping: KeepOptions,
    texts: TextOptions,
    weights: options.Weights = None,
    quality_weights: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Weights for all but the decode times. Default: bf16 where any are quantised, whose 8-bit activations "
            "would blur what the cache does.",
        ),
    ] = None,
    threads: options.Threads = None,
    state: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to keep what is done. Default: in the cache directory.")
    ] = None,
    is_fresh: Annotated[bool, typer.Option("--fresh", help="Measure again what an earlier run has done.")] = False,
    times: Annotated[
        str,
        typer.Option(
            metavar="WHEN",
            help="Decode times, which other work on the machine spoils: once, skip (a later run adds them), or again "
            "(measure these alone anew).",
        ),
    ] = "once",
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw bytes against KL into a .png, .svg or .pdf (extra lab).")
    ] = None,
    is_json: options.Json = False,
) -> None:
    """Compare ways of keeping the cache on a text: bytes, perplexity, KL from f32, speed, and a hidden pass key."""
    if plot is not None:
        from kvist.lab.figures import check_figure_path

        check_figure_path(plot)
    if times not in _TIMES:
        raise RequestError(f'--times takes {", ".join(_TIMES)}; got "{times}"')
    out, specs, num_threads = Output(is_json), keeping.specs(), threads_to_use(threads)
    _check_state(state, {"--text": texts.text, "--plot": plot}, is_fresh=is_fresh)
    from kvist.engine.files import open_model
    from kvist.lab.machine import this_machine

    machine = this_machine()
    with open_model(model) as files, ExitStack() as held:
        keeping.check_layers(len(files.spec.layers))
        work = _work(files, texts)
        models = _load(files, held, weights, quality_weights, num_threads, work.context)
        facts = _facts(files, models, work)
        out.notice(f"{_about(facts)}; {machine}")
        rows, reference = _evaluated(out, models, specs, work, state, times, is_fresh=is_fresh)
    for line in _table(rows, reference):
        out.line(line)
    if plot is not None:
        from kvist.lab.figures import save_figure
        from kvist.lab.figures_quality import draw_quality

        save_figure(draw_quality(rows, work.context, f"{_about(facts)}; {machine}"), plot)
        out.notice(f"drawn into {plot}")
    document = {"rows": [row.as_json() for row in rows], "reference_perplexity": reference}
    out.finish({**facts, **document, "machine": machine.as_json()})


def _check_state(state: Path | None, others: dict[str, str | Path | None], *, is_fresh: bool) -> None:
    """Raise RequestError where one of the ``others``, files by option, is the state's; KvistError where it can't be."""
    from kvist.kernels.jit import cache_root
    from kvist.lab.quality_state import check_state_directory, check_state_file

    if state is None:
        check_state_directory(cache_root() / "eval")
        return
    for option, file in others.items():
        if file is not None and realpath(file) == realpath(state):
            raise RequestError(f'--state and {option} are the same file, "{state}"; give another to --state')
    check_state_file(state, is_fresh=is_fresh)


def _work(files: ModelFiles, texts: TextOptions) -> Work:
    """Return the windows and needles. Raises RequestError for a text, or a part of it, that is too short."""
    from kvist.lab import quality
    from kvist.lab import texts as library
    from kvist.lab.needle import make_needle

    num_tokens = texts.tokens or quality.DEFAULT_TOKENS
    trained = files.spec.context_length
    if texts.context is not None and texts.context > trained:
        raise RequestError(f"--context must be from 2 to {trained} tokens, as trained, got {texts.context}")
    tokenizer = files.require_tokenizer()
    begin = [] if tokenizer.bos_token_id is None else [i for i in tokenizer.encode("") if i == tokenizer.bos_token_id]
    text = library.library_text(_CHARACTERS_A_TOKEN * num_tokens) if texts.text is None else read_text(texts.text)
    token_ids = tokenizer.encode(text, add_special_tokens=False)[:num_tokens]
    context = texts.context or max(2 + len(begin), min(quality.DEFAULT_CONTEXT, trained, len(token_ids)))
    if num_tokens < context:
        raise RequestError(
            f"--tokens {num_tokens} takes less of the text than a context of {context} needs; raise --tokens or lower "
            "--context"
        )
    if len(token_ids) < context:
        plural = "" if len(token_ids) == 1 else "s"
        raise RequestError(
            f"the text has {len(token_ids)} token{plural}, fewer than a context of {context}; give a longer one"
        )
    windows = quality.cut(token_ids, context, begin)
    depths = enumerate(texts.needle_depths())
    needles = tuple(make_needle(tokenizer, token_ids, context, number, depth) for number, depth in depths)
    return quality.Work(windows, needles)


def _load(
    files: ModelFiles, held: ExitStack, weights: str | None, quality_weights: str | None, threads: int, context: int
) -> Models:
    """Load the model as it is run with a context, and with float weights: the same one where the file's are float."""
    from kvist.lab.quality import Models, rounds_activations
    from kvist.model.decoder import load_decoder

    load = partial(load_decoder, files.checkpoint, threads=threads, context=context)
    speed = held.enter_context(closing(load(weights=weights)))
    if quality_weights is None and not rounds_activations(speed):
        return Models(speed, speed)
    return Models(held.enter_context(closing(load(weights=quality_weights or "bf16"))), speed)


def _facts(files: ModelFiles, models: Models, work: Work) -> dict[str, Any]:
    return {
        "model": files.name,
        "threads": models.speed.num_threads,
        "weight_types": models.speed.weight_types,
        "quality_weight_types": models.quality.weight_types,
        "context": work.context,
        "text_tokens": sum(map(len, work.windows)),
        "compared_tokens": work.num_compared,
        "text_digest": work.digest,
    }


def _about(facts: dict[str, Any]) -> str:
    return (
        f"{facts['model']}, {facts['text_tokens']} tokens (text {facts['text_digest']}) in windows of "
        f"{facts['context']}, {facts['threads']} threads"
    )


def _evaluated(
    out: Output,
    models: Models,
    specs: Sequence[CacheSpec],
    work: Work,
    path: Path | None,
    times: str,
    *,
    is_fresh: bool,
) -> tuple[list[Row], float]:
    """Return the rows, and the reference's perplexity."""
    from kvist.cache.memory import available_memory
    from kvist.kernels.jit import cache_root
    from kvist.lab import quality, quality_rows
    from kvist.lab.quality_state import EvalState

    key = models.identity(work)
    path = path or cache_root() / "eval" / f"{key}.json"
    state = EvalState(path, key, is_fresh=is_fresh, positions=work.positions)
    threads = models.speed.num_threads
    timed_threads = None if times == "skip" else threads
    if times == "again":
        for spec in specs:
            state.forget_tpot(spec, threads)
    missing = sum(work.num_missing(spec, state, timed_threads) for spec in specs)
    whole = sum(work.num_missing(spec, EvalState(None, key), timed_threads) for spec in specs)
    if missing < whole:
        out.notice(f"{1 - missing / whole:.0%} was done before and is in {state.path}; --fresh measures again")
    free = available_memory()
    with progress_bar("tokens", missing) as advance:
        memory = None if free is None else free // 2
        is_timed = timed_threads is not None
        quality.evaluate(models, specs, work, state, is_timed=is_timed, memory=memory, on_tokens=advance)
    rows = [quality_rows.row(models.speed.spec, spec, work, state, threads) for spec in specs]
    return rows, quality_rows.reference_perplexity(work, state)


def _table(rows: Sequence[Row], reference: float) -> list[str]:
    return [f"perplexity with f32 keys and values, all kept: {reference:.4f}", "", _HEADING, *map(_line, rows)]


def _line(row: Row) -> str:
    needle = "-" if row.needle is None else f"{row.needle:.0%}"
    decode = "-" if row.tpot_s is None else f"{1e3 * row.tpot_s:.2f} ms"
    return (
        f"{row.name:<12} {row.retention:<14} {row.bytes_per_token:>8} B {format_bytes(row.num_bytes):>11}"
        f" {row.perplexity:>10.4f} {row.perplexity_change:>+8.2%} {row.kl_mean:>9.6f} {row.kl_p99:>9.6f}"
        f" {row.top1_agreement:>7.2%} {decode:>9} {needle:>7}"
    )
