"""``kvist bench`` for many users: throughput, a shared prefix, speculation, and the arrival of a long prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvist.cli import options
from kvist.cli.bench import bench_app
from kvist.cli.bench_run import BenchRun, EngineOptions, Plot, Quick
from kvist.cli.flatten import flattened
from kvist.cli.output import command
from kvist.cli.startup import loading
from kvist.errors import KvistError
from kvist.spec.cache import bytes_per_token, pool_bytes
from kvist.units import format_bytes

__all__ = ["bench_app"]

if TYPE_CHECKING:
    from kvist.engine.files import ModelFiles
    from kvist.lab.bench_prefix import PrefixBench
    from kvist.lab.bench_schedule import Round, ScheduleBench
    from kvist.lab.bench_speculation import Speculated, SpeculationBench
    from kvist.lab.bench_throughput import ThroughputBench
    from kvist.lab.ceiling import BestProbe
    from kvist.lab.figures import Figure
    from kvist.llm import LLM
    from kvist.spec.model import ModelSpec


@dataclass(frozen=True)
class Served:
    """A model with a pool of its own; ``facts`` go into the document."""

    llm: LLM
    probe: BestProbe
    facts: dict[str, object]


@contextmanager
def _served(
    run: BenchRun, model: str, engine: EngineOptions, what: str, num_tokens: Callable[[ModelSpec], list[int]]
) -> Iterator[Served]:
    """Load ``model`` with a pool for sequences of the lengths that ``num_tokens`` gives, and begin."""
    from kvist.engine.files import open_model
    from kvist.llm import LLM

    with open_model(model) as files:
        lengths, cache = _checked(files, num_tokens(files.spec)), engine.cache
        budget = sum(pool_bytes(files.spec, cache, length, length) for length in lengths)
        with loading():
            llm = LLM(files, engine.weights, cache, engine.threads, context=max(lengths), kv_budget=budget)
        with llm:
            probe = run.begin(
                what, model=files.name, threads=llm.num_threads, cache=cache, weight_types=llm.weight_types
            )
            yield Served(llm, probe, {"pool_bytes": budget})


def _checked(files: ModelFiles, lengths: list[int]) -> list[int]:
    """Return ``lengths``. Raises KvistError where the model takes no sequence as long as the longest."""
    if max(lengths) > files.spec.context_length:
        raise KvistError(
            f"this takes sequences of {max(lengths)} tokens, and {files.name} was trained on "
            f"{files.spec.context_length}; ask for fewer tokens, or take --quick"
        )
    return lengths


@bench_app.command("throughput", epilog="Example: kvist bench throughput --users 1 --users 16 --json")
@command
@flattened
def bench_throughput(
    *,
    model: options.Model = options.DEFAULT_MODEL,
    users: Annotated[
        list[int] | None,
        typer.Option("--users", metavar="N", min=1, help="Users at once; may be repeated. Default: 1, 4, 16, 32, 64."),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How often each is timed. Default: 3.")
    ] = None,
    engine: EngineOptions,
    is_quick: Quick = False,
    is_json: options.Json = False,
) -> None:
    """Serve users at once, 128 tokens of prompt and 128 generated each: tokens a second, waits, waste."""
    from kvist.lab import bench_throughput as lab

    run = BenchRun("throughput", is_quick=is_quick, is_json=is_json)
    numbers = users or list(lab.DEFAULT_USERS[:3] if is_quick else lab.DEFAULT_USERS)
    generated = lab.QUICK_TOKENS if is_quick else lab.GENERATED_TOKENS
    length = lab.PROMPT_TOKENS + generated
    what = f"{', '.join(map(str, numbers))} users, {lab.PROMPT_TOKENS} tokens of prompt and {generated} generated"
    with _served(run, model, engine, what, lambda _: [length] * max(numbers)) as served:
        bench = lab.bench_throughput(
            served.llm.engine,
            numbers,
            probe=served.probe,
            generated_tokens=generated,
            repeats=repeats or (1 if is_quick else lab.REPEATS),
            on_run=lambda one: run.out.notice(f"{one.users} users: {one.generated_tokens_per_s:.0f} tokens a second"),
        )
    run.finish(_throughput_lines(bench), {**served.facts, **bench.as_json()})


def _throughput_lines(bench: ThroughputBench) -> Iterator[str]:
    factor = bench.ceiling.matmul_factor
    yield f"4-bit matmul {bench.ceiling.matmul_rate / 1e12:.2f} TOP/s: `scaled` is divided by {factor:.2f}"
    yield f"{'users':>6} {'tokens/s':>9} {'scaled':>8} {'best':>8} {'first':>10} {'gap':>9} {'gap p99':>9} {'waste':>7}"
    for one in bench.runs:
        yield _throughput_line(one.as_json(factor))


def _throughput_line(run: dict[str, Any]) -> str:
    return (
        f"{run['users']:>6} {run['generated_tokens_per_s']:>9.0f} {run['generated_tokens_per_s_scaled']:>8.0f}"
        f" {run['best_tokens_per_s']:>8.0f} {1e3 * run['ttft_s']:>7.0f} ms {1e3 * run['itl_s']:>6.1f} ms"
        f" {1e3 * run['itl_p99_s']:>6.1f} ms {run['waste']:>7.2%}"
    )


@bench_app.command("prefix", epilog="Example: kvist bench prefix --json")
@command
@flattened
def bench_prefix(
    *,
    model: options.Model = options.DEFAULT_MODEL,
    users: Annotated[int | None, typer.Option(metavar="N", min=1, help="Users at once. Default: 32.")] = None,
    prefix: Annotated[int | None, typer.Option(metavar="TOKENS", min=16, help="Length of it. Default: 2000.")] = None,
    engine: EngineOptions,
    is_quick: Quick = False,
    is_json: options.Json = False,
) -> None:
    """Time what a prefix saves: the first token after a hit, and decoding where many users share its blocks."""
    from kvist.lab import bench_prefix as lab

    run = BenchRun("prefix", is_quick=is_quick, is_json=is_json)
    users = users or (8 if is_quick else lab.USERS)
    prefix = prefix or (512 if is_quick else lab.PREFIX_TOKENS)
    length = prefix + max(lab.NEW_TOKENS + 1, lab.OWN_TOKENS + lab.DECODED_TOKENS)
    what = f"a prefix of {prefix} tokens, {users} users"
    with _served(run, model, engine, what, lambda _: [length] * (users + 2)) as served:
        bench = lab.bench_prefix(
            served.llm.engine,
            bytes_per_token(served.llm.spec, engine.cache),
            prefix_tokens=prefix,
            users=users,
            repeats=2 if is_quick else lab.REPEATS,
            on_phase=run.out.notice,
        )
    run.finish(_prefix_lines(bench), {**served.facts, **bench.as_json()})


def _prefix_lines(bench: PrefixBench) -> list[str]:
    cold_ms, hit_ms = 1e3 * bench.cold.median_s, 1e3 * bench.hit.median_s
    decoding = f"{bench.shared.users} users who decode"
    lines = [
        f"first token of {bench.prefix_tokens} + {bench.new_tokens} tokens: {cold_ms:.1f} ms cold",
        f"{hit_ms:.1f} ms with {bench.hit_tokens} of them cached: {bench.ttft_ratio:.1f} times sooner",
        "",
        f"{decoding:<20} {'step':>12} {'tokens/s':>9} {'keys and values read':>21} {'attending':>12}",
    ]
    for name, found in (("one prefix", bench.shared), ("their own", bench.distinct), ("hardly any", bench.short)):
        attending = "" if found is bench.short else f"{1e3 * (found.step_s - bench.short.step_s):>9.1f} ms"
        lines.append(
            f"{name:<20} {1e3 * found.step_s:>9.1f} ms {found.tokens_per_s:>9.0f} {format_bytes(found.kv_bytes):>21}"
            f" {attending:>12}"
        )
    return [*lines, f"{bench.decode_ratio:.2f} times the tokens a second where the prefix is shared"]


@bench_app.command("speculation", epilog="Example: kvist bench speculation --json")
@command
@flattened
def bench_speculation(
    *,
    model: options.Model = options.DEFAULT_MODEL,
    draft: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="Most tokens guessed at a time. Default: 11.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How often each is timed. Default: 5.")
    ] = None,
    engine: EngineOptions,
    is_quick: Quick = False,
    is_json: options.Json = False,
) -> None:
    """Answer samples with and without drafts from repeated text: seconds a token, acceptance, whether a bit differs."""
    from kvist.lab import bench_speculation as lab
    from kvist.lab.samples import SAMPLES

    run = BenchRun("speculation", is_quick=is_quick, is_json=is_json)
    with _served(run, model, engine, "speculation", lambda spec: [min(2048, spec.context_length)]) as served:
        bench = lab.bench_speculation(
            served.llm,
            SAMPLES,
            draft_tokens=draft if draft is not None else lab.DRAFT_TOKENS,
            repeats=repeats or (1 if is_quick else lab.REPEATS),
            on_sample=lambda found: run.out.notice(f"--- {found.sample.name}\n{found.plain.text}\n"),
        )
    run.finish(_speculation_lines(bench), {**served.facts, **bench.as_json()})
    if not bench.is_identical:
        raise KvistError("the results differ with and without drafts; that is a bug in kvist, please report it")


def _speculation_lines(bench: SpeculationBench) -> Iterator[str]:
    yield f"{'sample':<14} {'repeats':>8} {'tokens':>7} {'plain':>9} {'drafted':>9} {'faster':>7} {'right':>14}"
    yield from map(_speculated_line, bench.samples)
    yield "tokens and logits are identical" if bench.is_identical else "THE RESULTS DIFFER"


def _speculated_line(found: Speculated) -> str:
    facts: dict[str, Any] = found.as_json()
    right = (
        "none drafted" if facts["acceptance"] is None else f"{facts['accepted_tokens']} of {facts['drafted_tokens']}"
    )
    plain_ms, drafted_ms = 1e3 * facts["tpot_s"], 1e3 * facts["speculative_tpot_s"]
    return (
        f"{found.sample.name:<14} {'prompt' if found.sample.repeats else '-':>8} {facts['generated_tokens']:>7}"
        f" {plain_ms:>6.2f} ms {drafted_ms:>6.2f} ms {found.speedup:>6.2f}x {right:>14}"
    )


@bench_app.command("schedule", epilog="Example: kvist bench schedule --plot schedule.png")
@command
@flattened
def bench_schedule(
    *,
    model: options.Model = options.DEFAULT_MODEL,
    users: Annotated[int | None, typer.Option(metavar="N", min=1, help="Users who decode. Default: 8.")] = None,
    prompt: Annotated[
        int | None, typer.Option(metavar="TOKENS", min=64, help="Length of the prompt that comes. Default: 6000.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(metavar="N", min=1, help="How often it comes. Default: 3.")] = None,
    plot: Plot = None,
    engine: EngineOptions,
    is_quick: Quick = False,
    is_json: options.Json = False,
) -> None:
    """Let a long prompt arrive while users decode: how long they wait for a token, and how fast the prompt goes."""
    from kvist.lab import bench_schedule as lab

    run = BenchRun("schedule", is_quick=is_quick, is_json=is_json, plot=plot)
    users, prompt = users or lab.USERS, prompt or (1_500 if is_quick else lab.PROMPT_TOKENS)
    lengths = [lab.USER_TOKENS + lab.MOST_GENERATED] * users + [prompt + 1]
    with _served(run, model, engine, f"{users} users and a prompt of {prompt} tokens", lambda _: lengths) as served:
        bench = lab.bench_schedule(
            served.llm.engine,
            users=users,
            prompt_tokens=prompt,
            rounds=rounds or (1 if is_quick else lab.ROUNDS),
            on_round=lambda found: run.out.notice(f"worst wait {found.stretch:.2f} times the median alone"),
        )
    document = {**served.facts, **bench.as_json()}
    run.finish(_schedule_lines(bench), document, lambda caption: _schedule_figure(bench, caption))


def _schedule_figure(bench: ScheduleBench, caption: str) -> Figure:
    from kvist.lab.figures_bench import draw_schedule

    return draw_schedule(bench.rounds[-1], bench.users, caption)


def _schedule_lines(bench: ScheduleBench) -> Iterator[str]:
    yield (
        f"{'round':>5} {'alone':>9} {'worst':>9} {'times':>6} {'of before':>9} {'by itself':>9}"
        f" {'prompt':>8} {'alone':>8} {'of its rate':>11}"
    )
    for number, found in enumerate(bench.rounds, start=1):
        yield f"{number:>5} {_schedule_line(found)}"


def _schedule_line(found: Round) -> str:
    return (
        f"{1e3 * found.median_gap_s:>6.1f} ms {1e3 * found.worst_gap_s:>6.1f} ms {found.stretch:>6.2f}"
        f" {found.worst_gap_s / found.before_gap_s:>9.2f} {found.stretch_alone:>9.2f}"
        f" {found.prefill_s:>6.2f} s {found.alone_s:>6.2f} s {found.prefill_share:>11.0%}"
    )
