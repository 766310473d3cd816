"""``kvist bench codec``: what keys and values in fewer bits take and gain, beside each other in one run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from kvist.cli import options
from kvist.cli.bench_memory import bench_app
from kvist.cli.bench_run import BenchRun, Quick
from kvist.cli.eval_options import codec_pairs
from kvist.cli.output import command
from kvist.engine.cores import threads_to_use
from kvist.spec.cache import CODECS, CacheSpec, bytes_per_token

__all__ = ["bench_app"]

if TYPE_CHECKING:
    from kvist.lab.bench_codec import CodecBench, CodecSpeed

_HEADING = (
    f"{'K/V':<12} {'a token':>9} {'context':>8} {'decode':>10} {'faster':>7} {'prompt':>9} {'tokens/s':>9}"
    f" {'scaled':>7} {'faster':>7}"
)


@bench_app.command("codec", epilog="Example: kvist bench codec --kv bf16,int8,int8/int4 --length 7000 --json")
@command
def bench_codec(
    model: options.Model = options.DEFAULT_MODEL,
    kv: Annotated[
        str | None,
        typer.Option(
            "--kv",
            metavar="LIST",
            help=f"Codecs of {', '.join(CODECS)}; K and V apart as K/V. The first is what the others are compared with."
            " Default: bf16,int8,int4.",
        ),
    ] = None,
    weights: options.Weights = None,
    threads: options.Threads = None,
    length: Annotated[
        list[int] | None, typer.Option(metavar="TOKENS", help="A context length to measure at; may be repeated.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="How often each prompt is timed.")] = 2,
    is_quick: Quick = False,
    is_json: options.Json = False,
) -> None:
    """Time decode and prefill with each codec, in turns: bytes a token, seconds, and how much faster than the first."""
    from kvist.engine.files import open_model
    from kvist.lab import bench_codec as lab
    from kvist.model.decoder import load_decoder

    pairs = codec_pairs(kv or (lab.QUICK_CODECS if is_quick else lab.DEFAULT_CODECS))
    specs = list(dict.fromkeys(CacheSpec(k=k, v=v) for k, v in pairs))
    lengths = length or (lab.QUICK_LENGTHS if is_quick else lab.DEFAULT_LENGTHS)
    run, threads = BenchRun("codec", is_quick=is_quick, is_json=is_json), threads_to_use(threads)
    with open_model(model) as files, closing(load_decoder(files.checkpoint, weights=weights, threads=threads)) as it:
        what = f"decode and prefill at {', '.join(map(str, lengths))} tokens with {len(specs)} codecs"
        probe = run.begin(what, model=files.name, threads=threads, cache=specs[0], weight_types=it.weight_types)
        bench = lab.bench_codec(
            it, specs, lengths, probe=probe, repeats=repeats, on_speed=lambda speed: run.out.notice(_at(speed))
        )
    run.finish(_lines(bench), bench.as_json())


def _at(speed: CodecSpeed) -> str:
    decode_ms, prompt_s = 1e3 * speed.tpot.median_s, speed.ttft.median_s
    return f"{speed.context} tokens in {_name(speed.spec)}: {decode_ms:.2f} ms a token, prompt {prompt_s:.3f} s"


def _name(spec: CacheSpec) -> str:
    return spec.k_codec if spec.k_codec == spec.v_codec else f"{spec.k_codec}/{spec.v_codec}"


def _lines(bench: CodecBench) -> Iterator[str]:
    factor = bench.ceiling.matmul_factor
    yield f"`scaled` is divided by {factor:.2f}, this run's 4-bit matmul over the yardstick"
    yield _HEADING
    for speed in bench.speeds:
        first, rate_s = bench.first_at(speed.context), speed.prefill_tokens_per_s
        yield (
            f"{_name(speed.spec):<12} {bytes_per_token(bench.model, speed.spec):>7} B {speed.context:>8}"
            f" {1e3 * speed.tpot.median_s:>7.2f} ms {first.tpot.median_s / speed.tpot.median_s:>6.2f}x"
            f" {speed.ttft.median_s:>7.3f} s {rate_s:>9.0f} {rate_s / factor:>7.0f}"
            f" {first.ttft.median_s / speed.ttft.median_s:>6.2f}x"
        )
