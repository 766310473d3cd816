"""``kvist bench memory``: what users cost in bytes, as predicted, reserved and measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from kvist.cli import options
from kvist.cli.bench_long import bench_app
from kvist.cli.bench_run import BenchRun, EngineOptions, Quick
from kvist.cli.flatten import flattened
from kvist.cli.output import command
from kvist.engine.cores import threads_to_use
from kvist.errors import KvistError
from kvist.units import format_bytes

__all__ = ["bench_app"]

if TYPE_CHECKING:
    from kvist.lab.bench_memory import Memory, MemoryBench


@bench_app.command("memory", epilog="Example: kvist bench memory --users 1 --users 8 --json")
@command
@flattened
def bench_memory(
    *,
    model: options.Model = options.DEFAULT_MODEL,
    users: Annotated[
        list[int] | None,
        typer.Option("--users", metavar="N", min=1, help="Users at once; may be repeated. Default: 1, 8, 64."),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Tokens of each user's own. Default: 512.")
    ] = None,
    shared: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Tokens of the system prompt that others share. Default: 1000."),
    ] = None,
    engine: EngineOptions,
    is_quick: Quick = False,
    is_json: options.Json = False,
) -> None:
    """Let users hold their tokens all at once: bytes predicted, allocated, reserved and resident, sharing or not."""
    from kvist.engine.files import open_model
    from kvist.lab import bench_memory as lab
    from kvist.model.decoder import load_decoder

    run, cache = BenchRun("memory", is_quick=is_quick, is_json=is_json), engine.cache
    threads = threads_to_use(engine.threads)
    numbers = users or (lab.QUICK_USERS if is_quick else lab.DEFAULT_USERS)
    own = tokens or (lab.QUICK_TOKENS if is_quick else lab.USER_TOKENS)
    common = shared or (lab.QUICK_SHARED_TOKENS if is_quick else lab.SHARED_TOKENS)
    with open_model(model) as files:
        if own + common > files.spec.context_length:
            raise KvistError(
                f"this takes sequences of {own + common} tokens, and {files.name} was trained on "
                f"{files.spec.context_length}; give less to --tokens or --shared"
            )
        with closing(load_decoder(files.checkpoint, weights=engine.weights, threads=threads)) as decoder:
            what = f"{', '.join(map(str, numbers))} users of {own} tokens, without and with {common} in common"
            run.begin(what, model=files.name, threads=threads, cache=cache, weight_types=decoder.weight_types)
            bench = lab.bench_memory(
                decoder,
                cache,
                numbers,
                tokens=own,
                shared_tokens=common,
                on_row=lambda row: run.out.notice(f"{row.users} users: {format_bytes(row.allocated_bytes)}"),
            )
    run.finish(_lines(bench), bench.as_json())
    if not bench.is_exact:
        raise KvistError("the cache doesn't take what was predicted; that is a bug in kvist, please report it")


def _lines(bench: MemoryBench) -> Iterator[str]:
    names = ("predicted", "allocated", "reserved", "resident", "a user")
    yield f"{'users':>6} {'in common':>9} {' '.join(f'{name:>12}' for name in names)}"
    for row in (*bench.apart, *bench.shared):
        yield _line(row)
    if bench.is_exact:
        yield "predicted, allocated and reserved are the same to the byte" + (
            ", linear in users" if bench.is_linear else ""
        )
    else:
        yield "THE PREDICTION IS WRONG"


def _line(row: Memory) -> str:
    resident = "unknown" if row.resident_bytes is None else format_bytes(row.resident_bytes)
    return (
        f"{row.users:>6} {row.shared_tokens:>9} {format_bytes(row.predicted_bytes):>12}"
        f" {format_bytes(row.allocated_bytes):>12} {format_bytes(row.reserved_bytes):>12} {resident:>12}"
        f" {format_bytes(row.allocated_bytes // row.users):>12}"
    )
