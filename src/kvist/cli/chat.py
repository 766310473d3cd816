"""``kvist chat``: turns, each of which finds the earlier ones in the cache."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from kvist.cli import options, report
from kvist.cli.flatten import flattened
from kvist.cli.interrupt import Interrupt
from kvist.cli.lines import typed_lines
from kvist.cli.output import EXIT_INTERRUPTED, Output, command, error_line
from kvist.cli.startup import Startup
from kvist.errors import KvistError, RequestError

if TYPE_CHECKING:
    from kvist.cli.conversation import Conversation

_HELP = """/help       show this
/reset      forget the conversation; the system message stays
/save FILE  write the conversation to a new file, as JSON
/exit       leave (so do Ctrl-D, and Ctrl-C at the prompt)
Ctrl-C while an answer comes stops that answer and keeps what there is of it."""
_MAX_TOKENS = 1024


@command
@flattened
def chat(
    *,
    model: options.Model = options.DEFAULT_MODEL,
    system: options.System = None,
    max_tokens: Annotated[
        int, typer.Option("-n", "--max-tokens", metavar="N", help="The most tokens of an answer.")
    ] = _MAX_TOKENS,
    sampling: options.SamplingOptions,
    loading: options.LoadOptions,
    is_json: options.Json = False,
) -> None:
    """Talk with a model; a turn computes only its new text, the rest is in the cache. /help lists commands."""
    from kvist.cli.conversation import Conversation
    from kvist.engine.files import open_model

    out = Output(is_json)
    with open_model(model) as files:
        params = sampling.params(files.params, max_tokens=max_tokens)
        if not files.has_template:
            raise RequestError(f"{files.name} has no chat template; kvist generate --raw continues a text with it")
        files.encode_chat([{"role": "user", "content": system or ""}])
        shortfall = loading.shortfall(files, loading.capacity(files))
        if shortfall:
            out.notice(shortfall)
        with loading.load(files, Startup().progress) as llm:
            conversation = Conversation(llm, params, system)
            if sys.stdin.isatty():
                out.notice(f"{files.name}, context of {llm.context_length} tokens; /help lists commands, /exit leaves")
            is_interrupted = _talk(conversation, out, llm.context_length)
            out.finish(
                {
                    "model": files.name,
                    "messages": conversation.messages,
                    "turns": [report.document(result, files.tokenizer) for result in conversation.results],
                }
            )
    if is_interrupted:
        sys.exit(EXIT_INTERRUPTED)


def _talk(conversation: Conversation, out: Output, context_length: int) -> bool:
    """Take lines until the end; return whether it was an interruption. A pipe's first error ends the chat."""
    is_person = sys.stdin.isatty()
    try:
        for line in typed_lines("> "):
            if line.strip() in ("/exit", "/quit"):
                return False
            try:
                is_stopped = _take_line(line, conversation, out, context_length)
            except KvistError as error:
                if not is_person:
                    raise
                out.notice(error_line(error))
                continue
            if is_stopped and not is_person:
                return True
    except KeyboardInterrupt:
        out.notice("")
        return True
    return False


def _take_line(line: str, conversation: Conversation, out: Output, context_length: int) -> bool:
    """Do what ``line`` says; return whether an answer was stopped by Ctrl-C."""
    if not line.strip():
        return False
    if line.startswith("/"):
        _run_command(line, conversation, out)
        return False
    num_dropped = conversation.num_dropped
    with Interrupt() as interrupt:
        generation = conversation.ask(line, interrupt.is_set)
        if conversation.num_dropped > num_dropped:
            out.notice(
                f"the context holds {context_length} tokens: left out the oldest {conversation.num_dropped} messages"
            )
        try:
            for event in generation:
                out.write(event.text)
        finally:
            generation.close()
            conversation.keep(generation.result)
    out.line()
    ending = report.ending(generation.result, context_length)
    out.notice(report.summary(generation.result) + (f" | {ending}" if ending else ""))
    return interrupt.is_set()


def _run_command(line: str, conversation: Conversation, out: Output) -> None:
    name, _, argument = line.strip().partition(" ")
    commands: dict[str, Callable[[], str]] = {
        "/help": lambda: _HELP,
        "/reset": lambda: _reset(conversation),
        "/save": lambda: _save(conversation, argument.strip()),
    }
    if name not in commands:
        raise RequestError(
            f"unknown command {name}; known: {', '.join(commands)}, /exit; put a space before text that starts with /"
        )
    out.notice(commands[name]())


def _reset(conversation: Conversation) -> str:
    conversation.reset()
    return "the conversation is forgotten"


def _save(conversation: Conversation, name: str) -> str:
    if not name:
        raise RequestError("/save needs a file name: /save chat.json")
    return f"saved {len(conversation.messages)} messages to {conversation.save(name)}"
