"""Strings of every kind that tokenizers trip over, the same ones for a seed on any machine."""

from __future__ import annotations

import random
from collections.abc import Sequence

# fmt: off
WORDS = (
    "the", "of", "and", "to", "in", "model", "Paris", "café", "naïve", "straße", "İstanbul", "THEY'LL", "don't", "it's",
    "I'd", "we've", "o'clock", "'twas", "snake_case", "camelCase", "XMLHttp", "v2.0.1", "https://example.org/?q=1&r=%20",
    "user@host", "def", "return", "lambda", "x:", "int", "main(void)", "SELECT", "привет", "мир", "Γειά", "σου", "שלום",
    "مرحبا", "بالعالم", "สวัสดี", "नमस्ते", "दुनिया", "你好", "世界", "漢字", "カタカナ", "ひらがな", "안녕하세요",
    "ជំរាបសួរ", "Ǆ", "ﬁnd",
)
SPACES = (
    " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", " \n", "\n ", "\u00a0", "\u3000", "\u2028", "\v", " " * 17, "\t" * 3,
)
MARKS = tuple("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~…—–“”‘’¿¡·•€№")
ODD = (
    "e\u0301", "a\u0308\u0323", "\u0915\u094d\u0937\u093f", "\u1100\u1161", "🚀", "👩🏽\u200d🚀", "🇸🇪", "☃\ufe0f",
    "\u200b", "\ufeff", "\x00", "\x07", "\x1b[31m", "\x7f", "\x85", "\xad", "\ufffd", "\ue000", "\U0010ffff", "𐐀",
    "𝟘", "½", "²", "Ⅷ", "٣٤٥", "१२३",
)
# fmt: on
RANGES = (
    (0x20, 0x7E),
    (0xA1, 0x24F),
    (0x370, 0x5FF),
    (0x900, 0xDFF),
    (0x4E00, 0x9FFF),
    (0x1F300, 0x1FAFF),
    (0, 0x2FFF),
)


def varied_strings(count: int, *, seed: int, pieces: Sequence[str] = ()) -> list[str]:
    """`pieces` (tokens of a vocabulary, names of special ones) are mixed in."""
    rng = random.Random(seed)
    makers = (_prose, _numbers, _runs, _characters, *([_from_pieces] if pieces else ()))
    return [rng.choice(makers)(rng, pieces) for _ in range(count)]


def _prose(rng: random.Random, _: Sequence[str]) -> str:
    parts = [rng.choice((WORDS, WORDS, WORDS, SPACES, MARKS, ODD)) for _ in range(rng.randint(1, 14))]
    return "".join(rng.choice(part) + (" " if part is WORDS and rng.random() < 0.6 else "") for part in parts)


def _numbers(rng: random.Random, _: Sequence[str]) -> str:
    numbers = (str(rng.randrange(10 ** rng.randint(1, 12))) for _ in range(rng.randint(1, 6)))
    return rng.choice(("", " ", ", ", ".", "-", "/", "x")).join(numbers) + rng.choice(("", "%", "e10", " kg", "\n"))


def _runs(rng: random.Random, _: Sequence[str]) -> str:
    """The same few characters again and again: where the order of merges shows."""
    alphabet = rng.choice(("a", "ab", "= ", " ", "-_", "aA", "\n\t ", "日本", "🚀", "0", "'s", "ha", "\r\n"))
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 40))) + rng.choice(WORDS)


def _characters(rng: random.Random, _: Sequence[str]) -> str:
    low, high = rng.choice(RANGES)
    return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 24)))


def _from_pieces(rng: random.Random, pieces: Sequence[str]) -> str:
    if rng.random() < 0.2:
        return rng.choice(pieces) * rng.randint(2, 9)
    return "".join(rng.choice(pieces) for _ in range(rng.randint(1, 16)))
