"""Record what transformers makes of the chat templates in tests/checkpoint/chat_cases.py.

PYTHONPATH=tests .venv-oracles/bin/python -m oracles.record_chat
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
from checkpoint.chat_cases import REFUSED, cases
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

OUTPUT = Path(__file__).parents[1] / "data" / "chat_rendered.json"


def rendered() -> dict[str, str]:
    """Each case's text, or why the template refuses it."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    return {name: _rendered(tokenizer, template, **arguments) for name, (template, arguments) in cases().items()}


def _rendered(
    tokenizer: PreTrainedTokenizerFast,
    template: str,
    messages: list[dict[str, Any]],
    *,
    add_generation_prompt: bool = True,
    **variables: Any,
) -> str:
    try:
        return tokenizer.apply_chat_template(
            messages,
            chat_template=template,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **variables,
        )
    except (jinja2.TemplateError, TypeError) as error:
        return f"{REFUSED}{error}"


if __name__ == "__main__":
    OUTPUT.write_text(json.dumps(rendered(), indent=0) + "\n")
