"""``kvist bench``: what the cache saves, and how close the engine comes to this machine's limits."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvist.cli import options
from kvist.cli.bench_run import BenchRun, EngineOptions, Plot, Quick
from kvist.cli.flatten import flattened
from kvist.cli.output import Output, command
from kvist.engine.cores import threads_to_use
from kvist.errors import KvistError
from kvist.units import format_bytes

if TYPE_CHECKING:
    from kvist.lab.bench_cache import CacheBench
    from kvist.lab.bench_speed import LengthSpeed, SpeedBench
    from kvist.lab.ceiling import Ceiling
    from kvist.lab.figures import Figure

QUICK_TOKENS = 100
_HEADING = (
    f"{'context':>8} {'decode':>10} {'tokens/s':>9} {'read a step':>12} {'of ceiling':>10}"
    f" {'prompt':>10} {'tokens/s':>9} {'scaled':>8} {'of ceiling':>10}"
)
bench_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@bench_app.callback()
def _commands() -> None:
    """Measure: what the cache saves, and how close the engine comes to this machine's limits."""


@bench_app.command("cache", epilog="Example: kvist bench cache --plot cache.png")
@command
@flattened
def bench_cache(
    loading: options.LoadOptions,
    model: options.Model = options.DEFAULT_MODEL,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="What to continue.")] = None,
    max_tokens: Annotated[int | None, typer.Option("-n", "--max-tokens", help="Tokens to generate.")] = None,
    plot: Plot = None,
    is_quick: Quick = False,
    is_json: options.Json = False,
) -> None:
    """Generate the same tokens with the cache and without: both times, their ratio, and whether a bit differs."""
    from kvist.engine.files import open_model
    from kvist.lab import bench_cache as lab

    run = BenchRun("cache", is_quick=is_quick, is_json=is_json, plot=plot)
    num_tokens = max_tokens or (QUICK_TOKENS if is_quick else lab.DEFAULT_TOKENS)
    with open_model(model) as files, loading.load(files) as llm:
        run.begin(
            f"{num_tokens} greedy tokens, with the cache and without",
            model=files.name,
            threads=llm.num_threads,
            cache=loading.cache,
            weight_types=llm.weight_types,
        )
        on_token = _countdown(run.out, num_tokens)
        bench = lab.bench_cache(llm, prompt or lab.DEFAULT_PROMPT, num_tokens, on_token=on_token)
    run.finish(_cache_lines(bench), bench.as_json(), lambda caption: _cache_figure(bench, caption))
    if not bench.is_identical:
        raise KvistError("the results differ with and without the cache; that is a bug in kvist, please report it")


def _cache_figure(bench: CacheBench, caption: str) -> Figure:
    from kvist.lab.figures_bench import draw_cache

    return draw_cache(bench, caption)


@bench_app.command("speed", epilog="Example: kvist bench speed --threads 2 --json")
@command
@flattened
def bench_speed(
    *,
    model: options.Model = options.DEFAULT_MODEL,
    engine: EngineOptions,
    length: Annotated[
        list[int] | None, typer.Option(metavar="TOKENS", help="A context length to measure at; may be repeated.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="How often each prompt is timed.")] = 3,
    is_quick: Quick = False,
    is_json: options.Json = False,
) -> None:
    """Time decode and prefill at several lengths, beside the ceiling of the same run: bandwidth and integer dots."""
    from kvist.engine.files import open_model
    from kvist.lab import bench_speed as lab
    from kvist.model.decoder import load_decoder

    run, cache = BenchRun("speed", is_quick=is_quick, is_json=is_json), engine.cache
    threads = threads_to_use(engine.threads)
    lengths = length or (lab.QUICK_LENGTHS if is_quick else lab.DEFAULT_LENGTHS)
    with open_model(model) as files:
        decoder = load_decoder(files.checkpoint, weights=engine.weights, threads=threads)
        with closing(decoder):
            what = f"decode and prefill at {', '.join(map(str, lengths))} tokens"
            probe = run.begin(what, model=files.name, threads=threads, cache=cache, weight_types=decoder.weight_types)
            bench = lab.bench_speed(
                decoder,
                cache,
                lengths,
                probe=probe,
                repeats=repeats,
                on_length=lambda speed: run.out.notice(_at(speed)),
            )
    run.finish(_speed_lines(bench), bench.as_json())


def _countdown(out: Output, num_tokens: int) -> Any:
    """Tell now and then how far the slow half is."""

    def tell(index: int) -> None:
        if (index + 1) % 100 == 0:
            out.notice(f"without the cache: {index + 1} of {num_tokens}")

    return tell


def _cache_lines(bench: CacheBench) -> list[str]:
    last = min(50, len(bench.cached_token_s) - 1)
    rows = [f"{'':<16} {'whole':>10} {'first':>12} {'last ' + str(last):>14}"]
    for name, times in (("with cache", bench.cached_token_s), ("without cache", bench.uncached_token_s)):
        tail = sum(times[-last:]) / last if last else times[0]
        rows.append(f"{name:<16} {sum(times):>8.2f} s {1e3 * times[0]:>9.1f} ms {1e3 * tail:>11.1f} ms")
    verdict = "tokens and logits are identical" if bench.is_identical else "THE RESULTS DIFFER"
    return [*rows, f"{bench.ratio:.1f} times faster; {verdict}"]


def _at(speed: LengthSpeed) -> str:
    return f"{speed.context} tokens: {1e3 * speed.tpot.median_s:.2f} ms a token, prompt {speed.ttft.median_s:.3f} s"


def _speed_lines(bench: SpeedBench) -> list[str]:
    ceiling = bench.ceiling
    return [
        f"read bandwidth   {ceiling.read_bandwidth / 1e9:>8.1f} GB/s",
        f"integer dots     {ceiling.int_dot_peak / 1e12:>8.2f} TOP/s on registers",
        f"4-bit matmul     {ceiling.matmul_rate / 1e12:>8.2f} TOP/s ({ceiling.matmul_factor:.2f} of the yardstick)",
        f"packed weights   {format_bytes(bench.weights_bytes):>13}",
        "",
        _HEADING,
        *(_speed_line(bench, ceiling, speed) for speed in bench.lengths),
    ]


def _speed_line(bench: SpeedBench, ceiling: Ceiling, speed: LengthSpeed) -> str:
    tpot_s, rate = speed.tpot.median_s, speed.prefill_tokens_per_s
    share = f"{speed.share_of_int_dot(ceiling):.0%}" if bench.is_integer else "-"
    return (
        f"{speed.context:>8} {1e3 * tpot_s:>7.2f} ms {1 / tpot_s:>9.0f} {format_bytes(speed.bytes_per_step):>12}"
        f" {speed.share_of_bandwidth:>10.0%} {speed.ttft.median_s:>8.3f} s {rate:>9.0f}"
        f" {rate / ceiling.matmul_factor:>8.0f} {share:>10}"
    )
