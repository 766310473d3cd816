"""What a report measures: each figure's data, as JSON values. Knows nothing of how they are drawn.

Times are seconds, sizes bytes; a name with ``_ms`` or ``_mib`` doesn't occur: drawing converts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from time import perf_counter
from typing import TYPE_CHECKING, Any

from kvist.cache.kv_cache import KvCache
from kvist.engine.engine import Engine
from kvist.engine.request import Request
from kvist.errors import CapacityError
from kvist.lab import quality
from kvist.lab.bench_cache import DEFAULT_PROMPT, bench_cache
from kvist.lab.bench_speed import DECODE_STEPS, bench_speed
from kvist.lab.bench_throughput import serve
from kvist.lab.crowd import Crowd, Record, greedy, made_up_ids, new_salt
from kvist.lab.quality_rows import row
from kvist.lab.quality_state import EvalState
from kvist.lab.texts import library_text
from kvist.lab.timing import quantile
from kvist.lab.traffic import has_integer_dots, kv_bytes, prefill_bytes, prefill_operations, weight_bytes
from kvist.model.decoder import load_decoder
from kvist.planner.devices import DEVICES
from kvist.planner.hardware import find_device
from kvist.planner.known import KNOWN_DEVICES, KNOWN_MODELS, known_model
from kvist.planner.plan import Plan, plan
from kvist.spec.cache import CODECS, CacheSpec, pool_bytes, users_bytes
from kvist.spec.retention import RetentionSpec

if TYPE_CHECKING:
    from kvist.engine.files import ModelFiles
    from kvist.lab.ceiling import BestProbe
    from kvist.lab.report.effort import Effort
    from kvist.llm import LLM
    from kvist.model.decoder import Decoder
    from kvist.spec.model import ModelSpec

Data = dict[str, Any]
Advance = Callable[[int], object]

_CHARACTERS_A_TOKEN = 8
PLANNED_CONTEXT = 8192
_MOST_USERS = 1 << 20


def demonstration(llm: LLM, effort: Effort, advance: Advance) -> Data:
    """The same tokens with the cache and without; ``advance`` hears of each uncached one."""
    bench = bench_cache(llm, DEFAULT_PROMPT, effort.demo_tokens, on_token=lambda _: advance(1))
    return bench.as_json()


def memory(model: ModelSpec, cache: CacheSpec, weights_bytes: int, step_tokens: int, available: int | None) -> Data:
    """Bytes of the cache by users and by context, predicted, and of arrays that were really made."""
    trained = model.context_length
    lengths = _doubling(128, trained)
    contexts = sorted({min(trained, length) for length in (512, 2048, trained)})
    most = users_until(model, cache, weights_bytes, contexts[0])
    users = _doubling(1, min(_MOST_USERS, max(16, 4 * most)))
    made = [(codec, length) for codec in CODECS for length in contexts]
    return {
        "weights_bytes": weights_bytes,
        "codec": cache.k_codec if cache.k_codec == cache.v_codec else f"{cache.k_codec}/{cache.v_codec}",
        "users": [
            {
                "context": context,
                "users": users,
                "bytes": [users_bytes(model, cache, number, context) for number in users],
                "outgrows_weights_at": users_until(model, cache, weights_bytes, context),
            }
            for context in contexts
        ],
        "contexts": [
            {
                "codec": codec,
                "tokens": lengths,
                "bytes": [pool_bytes(model, CacheSpec(codec), length, step_tokens) for length in lengths],
                "bytes_per_token": pool_bytes(model, CacheSpec(codec), trained, step_tokens) / trained,
            }
            for codec in CODECS
        ],
        "measured": [
            found for codec, length in made if (found := _made(model, CacheSpec(codec), length, step_tokens, available))
        ],
    }


def users_until(model: ModelSpec, cache: CacheSpec, num_bytes: int, context: int) -> int:
    """The number of users of ``context`` tokens from which their caches together take ``num_bytes``."""
    return -(-num_bytes // users_bytes(model, cache, 1, context))


def _made(model: ModelSpec, cache: CacheSpec, length: int, step_tokens: int, available: int | None) -> Data | None:
    """A cache that was made for this, and its size; None for one that would take a quarter of the memory there is."""
    predicted = pool_bytes(model, cache, length, step_tokens)
    if available is not None and predicted > available // 4:
        return None
    allocated = KvCache(model, cache, num_tokens=length, step_tokens=step_tokens).store.arena.nbytes
    return {"codec": cache.k_codec, "tokens": length, "predicted_bytes": predicted, "bytes": int(allocated)}


def _doubling(first: int, last: int) -> list[int]:
    numbers = [first]
    while 2 * numbers[-1] < last:
        numbers.append(2 * numbers[-1])
    return [*numbers, last] if last > numbers[-1] else numbers


def roofline(decoder: Decoder, cache: CacheSpec, probe: BestProbe, effort: Effort, advance: Advance) -> Data:
    """Where decode and prefill stand between what memory gives and what the processor multiplies."""
    longest = decoder.context_length - DECODE_STEPS
    lengths = sorted({min(length, longest) for length in effort.lengths})
    speed = bench_speed(
        decoder, cache, lengths, probe=probe, repeats=effort.repeats, on_length=lambda one: advance(one.context)
    )
    crowd = _crowd(decoder, cache, effort)
    row_operations = prefill_operations(decoder, 1)
    decodes = [
        point("decode", one.context, 1, row_operations, one.bytes_per_step, one.tpot.median_s) for one in speed.lengths
    ]
    prefills = [
        point("prefill", one.context, 1, one.operations, prefill_bytes(decoder, cache, one.context), one.ttft.median_s)
        for one in speed.lengths
    ]
    several = point(
        "users",
        crowd["context"],
        crowd["users"],
        crowd["users"] * row_operations,
        weight_bytes(decoder) + crowd["users"] * kv_bytes(decoder.spec, cache, crowd["context"]),
        crowd["step_s"],
    )
    ceiling = probe.best
    return {
        "read_bandwidth": ceiling.read_bandwidth,
        "int_dot_peak": ceiling.int_dot_peak,
        "matmul_rate": ceiling.matmul_rate,
        "is_integer": has_integer_dots(decoder),
        "points": [*decodes, several, *prefills],
    }


def point(kind: str, context: int, users: int, operations: int, num_bytes: int, seconds: float) -> Data:
    return {
        "kind": kind,
        "context": context,
        "users": users,
        "operations": operations,
        "bytes": num_bytes,
        "seconds": seconds,
        "operations_per_byte": operations / num_bytes,
        "operations_per_s": operations / seconds,
    }


def _crowd(decoder: Decoder, cache: CacheSpec, effort: Effort) -> Data:
    """The median step of users who decode together: of as many as ever did."""
    prompt_tokens = 16
    engine = _engine(decoder, cache, prompt_tokens + effort.crowd_tokens, effort.crowd_users)
    serve(engine, effort.crowd_users, prompt_tokens, 2)  # compiles
    crowd = serve(engine, effort.crowd_users, prompt_tokens, effort.crowd_tokens)
    users = max(step.num_tokens for step in crowd.steps)
    steps = [step.end_s - step.start_s for step in crowd.steps if step.num_tokens == users]
    return {"users": users, "context": prompt_tokens + effort.crowd_tokens // 2, "step_s": quantile(steps, 0.5)}


def _engine(
    decoder: Decoder, cache: CacheSpec, length: int, users: int, clock: Callable[[], float] = perf_counter
) -> Engine:
    budget = users * pool_bytes(decoder.spec, cache, length, length)
    pool = KvCache(decoder.spec, cache, num_tokens=length, step_tokens=decoder.step_tokens, budget=budget)
    return Engine(decoder, pool, cache, context_length=length, clock=clock)


def smaller_caches(files: ModelFiles, decoder: Decoder, effort: Effort, advance: Advance) -> Data:
    """What codecs and windows take and what they cost, on a short text."""
    tokenizer = files.require_tokenizer()
    text = library_text(_CHARACTERS_A_TOKEN * effort.text_tokens)
    token_ids = tokenizer.encode(text, add_special_tokens=False)[: effort.text_tokens]
    context = min(effort.text_context, files.spec.context_length)
    work = quality.Work(quality.cut(token_ids, context), ())
    kept = (RetentionSpec("window", effort.kept), RetentionSpec("sinks", effort.kept - 4, num_sinks=4))
    specs = [*(CacheSpec(codec) for codec in effort.codecs), *(CacheSpec(retention=retention) for retention in kept)]
    state = EvalState(None, "report")
    if quality.rounds_activations(decoder):
        with closing(load_decoder(files.checkpoint, weights="bf16", threads=decoder.num_threads)) as exact:
            quality.evaluate(quality.Models(exact, decoder), specs, work, state, on_tokens=advance)
    else:
        quality.evaluate(quality.Models(decoder, decoder), specs, work, state, on_tokens=advance)
    return {
        "context": work.context,
        "compared_tokens": work.num_compared,
        "text_digest": work.digest,
        "rows": [row(files.spec, spec, work, state, decoder.num_threads).as_json() for spec in specs],
    }


def timeline(
    decoder: Decoder,
    cache: CacheSpec,
    effort: Effort,
    advance: Advance = bool,
    clock: Callable[[], float] = perf_counter,
) -> Data:
    """Requests that come one after the other, among them a long one: when each waits, is read, and is answered."""
    longest = min(decoder.context_length, max(prompt + generated for _, prompt, generated in effort.arrivals) + 1)
    engine = _engine(decoder, cache, longest, len(effort.arrivals), clock)
    serve(engine, len(effort.arrivals), 32, 2)
    crowd, salt = Crowd(engine), new_salt()
    for number, (num_passes, prompt_tokens, generated) in enumerate(effort.arrivals):
        for _ in crowd.run(lambda last=num_passes: len(crowd.steps) >= last):  # type: ignore[misc]
            pass
        prompt = made_up_ids(engine.vocab_size, min(prompt_tokens, longest - generated - 1), number)
        crowd.ask(Request(prompt, greedy(generated), salt=salt))
        advance(1)
    crowd.finish()
    start_s = crowd.records[0].asked_s
    return {
        "requests": [_lane(record, start_s) for record in crowd.records],
        "passes": [
            {"start_s": step.start_s - start_s, "end_s": step.end_s - start_s, "tokens": step.num_tokens}
            for step in crowd.steps
        ],
    }


def _lane(record: Record, start_s: float) -> Data:
    result = record.ticket.result
    asked_s = record.asked_s - start_s
    return {
        "prompt_tokens": result.prompt_tokens,
        "generated_tokens": result.generated_tokens,
        "asked_s": asked_s,
        "admitted_s": asked_s + (result.queue_s or 0.0),
        "token_s": [moment - start_s for moment in record.token_s],
    }


def planned() -> Data:
    """Users of well-known models on well-known devices, with a bf16 cache and with int8: arithmetic alone."""
    found = []
    for name in KNOWN_MODELS:
        model = known_model(name)
        for device_name in KNOWN_DEVICES:
            device = find_device(device_name, DEVICES)
            users = {}
            for codec in ("bf16", "int8"):
                made = plan(model, context=PLANNED_CONTEXT, device=device, cache=CacheSpec(codec))
                users[codec] = _users(made)
            found.append(
                {
                    "model": name,
                    "device": device.name,
                    "weights_bytes": made.weights_bytes,
                    "memory_bytes": device.capacity_bytes,
                    "users": users,
                }
            )
    return {"context": PLANNED_CONTEXT, "plans": found}


def _users(made: Plan) -> int:
    """How many fit: none where the weights alone don't."""
    try:
        return made.users or 0
    except CapacityError:
        return 0
