"""Prompts whose answers repeat them, and others whose answers don't: what speculation is measured on.

Each is answered through the chat template, and the answers are to be shown beside the figures, since a model that
fell into a loop would flatter any drafter. What repeats its prompt is answered greedily; what doesn't is drawn with a
seed: a small model that always takes the likeliest token soon repeats itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvist.engine.request import SamplingParams


@dataclass(frozen=True)
class Sample:
    """``repeats`` says that a good answer takes much of its text from the prompt."""

    name: str
    repeats: bool
    prompt: str
    max_tokens: int = 160

    def params(self, speculation: int) -> SamplingParams:
        """How it is answered; ``speculation`` is the longest draft."""
        temperature = 0.0 if self.repeats else 0.9
        return SamplingParams(
            max_tokens=self.max_tokens, temperature=temperature, top_p=0.95, seed=1, speculation=speculation
        )


SAMPLES = (
    Sample(
        "quotation",
        True,
        'Copy this paragraph exactly, but write "Tuesday" instead of "Monday":\n\n'
        "The library on Harbour Street opens at nine on Monday morning. Visitors may borrow up to six books at a time, "
        "and each book can be kept for three weeks. Children under twelve need a card that a parent has signed. The "
        "reading room on the second floor is quiet, and the café beside the entrance serves tea until five.",
    ),
    Sample(
        "code edit",
        True,
        "Here is a Python function:\n\n```python\ndef average_speed(distances, durations):\n    total_distance = 0\n"
        "    for distance in distances:\n        total_distance += distance\n    total_duration = 0\n"
        "    for duration in durations:\n        total_duration += duration\n"
        "    return total_distance / total_duration\n```\n\nWrite the same function again, with the name mean_speed.",
    ),
    Sample(
        "summary",
        True,
        "Summarize the following text in three sentences, using its own words:\n\n"
        "The Vasa was a Swedish warship that sank on her maiden voyage in 1628. She was one of the most heavily "
        "armed ships of her time, and she carried 64 bronze guns. The king had ordered a second gun deck, which "
        "made the ship too tall for her narrow hull. A light gust of wind was enough to tip her over, and water "
        "poured in through the open gun ports. Of the people on board, about thirty died. The wreck was found in "
        "1956 and raised in 1961. Today the ship can be seen in a museum in Stockholm, where more than a million "
        "people visit her every year.",
    ),
    Sample("story", False, "Write a short story about a lighthouse keeper who finds a letter in a bottle."),
    Sample("explanation", False, "Explain to a child why the sky is blue and why sunsets are red."),
    Sample("list", False, "Give ten tips for somebody who moves to a new city, one sentence each."),
)
