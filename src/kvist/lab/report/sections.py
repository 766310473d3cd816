"""The report's sections: for each figure what it shows, what would look wrong, which command makes it, its numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvist.lab.report import drawings
from kvist.lab.report.drawings import Draw
from kvist.units import format_bytes

Data = dict[str, Any]
Table = tuple[list[str], list[list[str]]]


@dataclass(frozen=True)
class Section:
    """One figure. ``data`` is its key in the report's document, which two sections may share.

    ``words`` says in plain words what is seen, with the numbers in it; ``command`` is given the model's name.
    """

    name: str
    data: str
    title: str
    draw: Draw
    words: Callable[[Data], str]
    wrong: str
    command: Callable[[str, Data], str]
    table: Callable[[Data], Table]


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms"


# --- with and without ------------------------------------------------------------------------------------------------


def _demonstration(data: Data) -> str:
    last_without, last_with = data["uncached_token_s"][-1], data["cached_token_s"][-1]
    return (
        f"The same {data['generated_tokens']} tokens were generated twice. Without the cache every token computes all "
        f"that came before it once more, so each takes longer than the one before: the last one took "
        f"{_ms(last_without)}. With the cache a token computes itself alone and looks up the rest: the last one took "
        f"{_ms(last_with)}. Together that is {data['uncached_s']:.1f} s against {data['cached_s']:.1f} s, "
        f"{data['ratio']:.0f} times faster, and every bit of every result is the same: "
        f"{data['uncached_forward_tokens']:,} rows went through the model instead of {data['cached_forward_tokens']:,}."
    )


def _demonstration_table(data: Data) -> Table:
    step = max(1, len(data["positions"]) // 12)
    rows = zip(data["positions"], data["cached_token_s"], data["uncached_token_s"], strict=True)
    shown = [[f"{at}", _ms(cached), _ms(uncached)] for at, cached, uncached in list(rows)[::step]]
    return ["position", "with the cache", "without"], shown


# --- memory ----------------------------------------------------------------------------------------------------------


def _users(data: Data) -> str:
    longest = data["users"][-1]
    each = longest["bytes"][0]
    crossings = ", ".join(
        f"at {line['context']:,} tokens each for {_counted(line['outgrows_weights_at'], 'user')}"
        for line in data["users"]
    )
    return (
        f"The weights are read by everybody and stand in memory once: {format_bytes(data['weights_bytes'])}. The cache "
        f"is everybody's own: {format_bytes(each)} for a user of {longest['context']:,} tokens. So memory grows with "
        f"every user, in a straight line, and at some number of users the caches together are as large as the model: "
        f"{crossings}. From there on it is the cache, not the model, that decides how many people a machine serves."
    )


def _users_table(data: Data) -> Table:
    rows = [
        [f"{line['context']:,}", format_bytes(line["bytes"][0]), f"{line['outgrows_weights_at']:,}"]
        for line in data["users"]
    ]
    return ["tokens each", "one user's cache", "users whose caches outgrow the weights"], rows


def _contexts(data: Data) -> str:
    sizes = ", ".join(f"{line['codec']} {line['bytes_per_token']:,.0f} B" for line in data["contexts"])
    measured = data["measured"]
    equal = sum(one["bytes"] == one["predicted_bytes"] for one in measured)
    return (
        f"One sequence's cache grows with its length, token by token. How fast depends on how a number is written: a "
        f"token takes {sizes}. The lines are computed from the model's shape alone. The {len(measured)} crosses are "
        f"caches that were made in this run: {equal} of them take exactly the predicted bytes."
    )


def _contexts_table(data: Data) -> Table:
    rows = [
        [one["codec"], f"{one['tokens']:,}", f"{one['predicted_bytes']:,}", f"{one['bytes']:,}"]
        for one in data["measured"]
    ]
    return ["codec", "tokens", "bytes predicted", "bytes made"], rows


# --- the roofline ----------------------------------------------------------------------------------------------------


def _roofline(data: Data) -> str:
    points = data["points"]
    decode = next(point for point in points if point["kind"] == "decode")
    prefill = points[-1]
    return (
        f"A machine has two limits: how many bytes it reads in a second (here {data['read_bandwidth'] / 1e9:.1f} GB, "
        f"the slope) and how many operations it does (here {data['int_dot_peak'] / 1e9:,.0f} billion, the flat roof). "
        f"Which one counts depends on how much is done with each byte. To generate one token, all weights are read and "
        f"each is used once or twice ({decode['operations_per_byte']:.1f} operations a byte): decode stands on the "
        f"left, at the slope, and waits for memory. A prompt of {prefill['context']:,} tokens uses each weight for "
        f"hundreds of tokens ({prefill['operations_per_byte']:,.0f} operations a byte): prefill stands on the right, "
        f"under the roof, and waits for arithmetic. Several users at once share the reading of the weights, which "
        f"moves decode to the right. Both limits were measured in the same run."
    )


def _roofline_table(data: Data) -> Table:
    names = {"decode": "decode", "users": "decode", "prefill": "prefill"}
    rows = [
        [
            names[point["kind"]],
            f"{point['context']:,}",
            f"{point['users']}",
            _ms(point["seconds"]),
            f"{point['operations_per_byte']:,.1f}",
            f"{point['operations_per_s'] / 1e9:,.1f}",
            f"{point['bytes'] / point['seconds'] / 1e9:,.2f}",
        ]
        for point in data["points"]
    ]
    return ["", "tokens", "users", "took", "operations a byte", "billions a second", "GB/s read"], rows


# --- smaller caches --------------------------------------------------------------------------------------------------


def _smaller(data: Data) -> str:
    rows = {drawings.way(row): row for row in data["rows"]}
    parts = []
    for name, row in rows.items():
        parts.append(f"{name} takes {format_bytes(row['bytes'])} and agrees on {row['top1_agreement']:.1%} of tokens")
    return (
        f"A cache can be made smaller in two ways: write each number with fewer bits, or keep fewer tokens. Both "
        f"change what the model says. How much was measured on {data['compared_tokens']:,} tokens of text, beside a "
        f"cache in float32 that keeps everything; the height is the mean KL divergence, which is 0 where nothing "
        f"changed: {'; '.join(parts)}. Points to the lower left are better. This is a short text: kvist eval measures "
        f"longer, and looks for a hidden fact, too."
    )


def _smaller_table(data: Data) -> Table:
    rows = [
        [
            drawings.way(row),
            f"{row['bytes_per_token']:,} B",
            format_bytes(row["bytes"]),
            f"{row['kl_mean']:.6f}",
            f"{row['perplexity_change']:+.2%}",
            f"{row['top1_agreement']:.2%}",
            _ms(row["tpot_s"]),
        ]
        for row in data["rows"]
    ]
    return ["", "a token", "the sequence", "mean KL", "perplexity", "same likeliest token", "decode step"], rows


# --- the scheduler ---------------------------------------------------------------------------------------------------


def _timeline(data: Data) -> str:
    longest = max(data["requests"], key=lambda lane: lane["prompt_tokens"])
    first_s = longest["token_s"][0] - longest["asked_s"]
    behind = [lane for lane in data["requests"] if longest["asked_s"] < lane["asked_s"] < longest["token_s"][0]]
    waited_s = max((lane["token_s"][0] - lane["asked_s"] for lane in behind), default=0.0)
    rest = f" One that came behind it had its first token after {waited_s:.2f} s." if behind else ""
    return (
        f"{len(data['requests'])} requests came one after the other; each is a lane. A tick is a token that came. One "
        f"of them has a prompt of {longest['prompt_tokens']:,} tokens, which took {first_s:.2f} s to read. It is "
        f"read in pieces, and in every pass those who are being answered get their next token as well: nobody waited "
        f"longer than {_ms(drawings.longest_wait_s(data))} for one.{rest}"
    )


def _timeline_table(data: Data) -> Table:
    rows = [
        [
            f"{lane['prompt_tokens']:,}",
            f"{lane['generated_tokens']}",
            f"{lane['asked_s']:.3f} s",
            f"{lane['token_s'][0] - lane['asked_s']:.3f} s",
            f"{lane['token_s'][-1]:.3f} s",
        ]
        for lane in data["requests"]
    ]
    return ["prompt", "answer", "came at", "first token after", "done at"], rows


# --- the planner -----------------------------------------------------------------------------------------------------


def _planned(data: Data) -> str:
    most = max(data["plans"], key=lambda one: one["users"]["bf16"])
    none = [f"{one['model']} on {one['device']}" for one in data["plans"] if not one["users"]["bf16"]]
    rest = f" None fit where the weights leave no room: {', '.join(none)}." if none else ""
    return (
        f"The same arithmetic answers for models and devices that aren't here: how many users of {data['context']:,} "
        f"tokens fit beside weights in bf16, in nine tenths of the memory. Most of these fit with {most['model']} on "
        f"{most['device']}: {most['users']['bf16']:,}. A cache in int8 takes about half, so that nearly twice as many "
        f"fit; layers with a sliding window, as Gemma's, keep less.{rest} Nothing of this was measured."
    )


def _planned_table(data: Data) -> Table:
    rows = [
        [
            one["model"],
            one["device"],
            format_bytes(one["weights_bytes"]),
            format_bytes(one["memory_bytes"]),
            f"{one['users']['bf16']:,}",
            f"{one['users']['int8']:,}",
        ]
        for one in data["plans"]
    ]
    return ["model", "device", "weights", "memory", "users, bf16", "users, int8"], rows


SECTIONS: tuple[Section, ...] = (
    Section(
        "demonstration",
        "demonstration",
        "With the cache and without",
        drawings.draw_demonstration,
        _demonstration,
        "Two lines that run side by side: then the cache isn't used. A line with the cache that climbs steeply: then a "
        "token computes more than itself. Different tokens: then the cache changes results, and this page would not "
        "have been made.",
        lambda model, data: f"kvist bench cache {model} -n {data['generated_tokens']} --plot cache.svg",
        _demonstration_table,
    ),
    Section(
        "users",
        "memory",
        "Memory against users",
        drawings.draw_users,
        _users,
        "A line that bends upwards: then something is kept twice for each user. One that never crosses the dashed "
        "line: then users were counted without their caches, the most common mistake in planning.",
        lambda model, data: f"kvist plan {model} --context {data['users'][-1]['context']} --explain",
        _users_table,
    ),
    Section(
        "contexts",
        "memory",
        "Memory against context",
        drawings.draw_contexts,
        _contexts,
        "A cross beside its line: then prediction and allocation are two different computations. A line that flattens "
        "is right only for a model with a sliding window.",
        lambda model, _: f"kvist plan {model} --plot plan.svg",
        _contexts_table,
    ),
    Section(
        "roofline",
        "roofline",
        "What prefill and decode wait for",
        drawings.draw_roofline,
        _roofline,
        "A point above the limit: then the limit was measured while something else ran. Points far below it: then time "
        "goes elsewhere, to Python, to waiting threads, or to another program.",
        lambda model, _: f"kvist bench speed {model}",
        _roofline_table,
    ),
    Section(
        "smaller",
        "smaller",
        "Smaller caches, and what they cost",
        drawings.draw_smaller,
        _smaller,
        "bf16 that isn't near the bottom: then there is an error beyond rounding. A smaller cache that is better than "
        "a larger one in everything: then the text is too short to tell.",
        lambda model, data: f"kvist eval {model} --context {data['context']} --retention all --plot quality.svg",
        _smaller_table,
    ),
    Section(
        "timeline",
        "timeline",
        "Many requests at once",
        drawings.draw_timeline,
        _timeline,
        "A gap in everybody's ticks while the long prompt is read: then it is read in one piece and all wait for it. A "
        "lane that begins only when another ends: then requests are served one by one.",
        lambda model, _: f"kvist bench schedule {model} --plot schedule.svg",
        _timeline_table,
    ),
    Section(
        "planned",
        "planned",
        "Well-known models on well-known devices",
        drawings.draw_planned,
        _planned,
        "More users with a larger model on the same device, unless it keeps fewer or smaller keys and values. Bars "
        "that don't change with the codec: then the cache isn't counted.",
        lambda _, data: (
            f"kvist plan config.json --gpu {data['plans'][0]['device'].split(' 24GB')[0].split()[-1]} "
            f"--context {data['context']} --kv int8"
        ),
        _planned_table,
    ),
)
