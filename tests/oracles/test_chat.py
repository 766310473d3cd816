"""transformers, asked afresh, renders the chat templates as recorded, which tests/checkpoint compares kvist's with."""

from __future__ import annotations

import json

from oracles.record_chat import OUTPUT, rendered


def test_chat_templates_render_as_recorded() -> None:
    assert rendered() == json.loads(OUTPUT.read_text())
