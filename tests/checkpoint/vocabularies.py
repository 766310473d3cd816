"""Small tokenizers trained on the spot, and the same ones as a GGUF file's keys or a Hugging Face directory."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from checkpoint import sentencepiece_twin as kinds
from checkpoint.sentencepiece_twin import Twin
from checkpoint.varied_strings import WORDS, varied_strings
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from kvist.checkpoint.gguf_tokenizer import read_gguf_tokenizer
from kvist.checkpoint.huggingface_tokenizer import read_huggingface_tokenizer
from kvist.checkpoint.pretokenizers import PRETOKENIZERS
from kvist.checkpoint.tokenizer import Tokenizer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
USER_DEFINED = ("<think>", "    ")
CORPUS = (
    "The quick brown fox jumps over the lazy dog. It's 1234567 o'clock; they'll say: don't!",
    "def main(argv):\n    for i in range(10):\n        print(f'{i:>3}', end='\\n')\n    return 0\n",
    "Größe, café, naïve, Привет мир, 你好世界, こんにちは, 안녕하세요, 🚀🌍👩\u200d🚀 e\u0301 a\u0308",
    "SELECT * FROM t WHERE x >= 3.14 AND y != 'z';\t\t\r\n\r\n   <a href=\"u\">v</a>  ",
)


def byte_level(pre: str) -> pre_tokenizers.PreTokenizer:
    """What tokenizer.json files of these models have; not how kvist spells it."""
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tiktoken = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    kinds = {
        "gpt-2": [plain],
        "smollm": [pre_tokenizers.Digits(individual_digits=True), plain],
        "llama-bpe": [pre_tokenizers.Split(Regex(tiktoken % "{1,3}"), "isolated"), cut],
        "dbrx": [pre_tokenizers.Split(Regex(tiktoken % "{1,3}"), "isolated"), cut],
        "qwen2": [pre_tokenizers.Split(Regex(tiktoken % ""), "isolated"), cut],
        "falcon": [
            pre_tokenizers.Punctuation("contiguous"),
            plain,
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ],
    }
    return pre_tokenizers.Sequence(kinds[pre])


@cache
def train_byte_level(pre: str) -> Backend:
    backend = Backend(models.BPE(ignore_merges=PRETOKENIZERS[pre].ignore_merges))
    backend.pre_tokenizer = byte_level(pre)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator([*CORPUS * 3, *varied_strings(300, seed=40)], trainer)
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in USER_DEFINED])
    return backend


@cache
def taking_names_as_text(pre: str) -> Backend:
    """The same tokenizer, told to take special tokens' names as plain text."""
    backend = Backend.from_str(train_byte_level(pre).to_str())
    backend.encode_special_tokens = True
    return backend


def train_space_marked(*, prepends_space: bool) -> Backend:
    """A vocabulary like Llama 2's: `▁` for a space, `<0x..>` for bytes that no token covers."""
    backend = Backend(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    steps = [normalizers.Prepend("▁")] if prepends_space else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if prepends_space else parts)
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=450, special_tokens=["<unk>", "<s>", "</s>", *byte_tokens], show_progress=False
    )
    backend.train_from_iterator([CORPUS[0], CORPUS[1]] * 3, trainer)
    state = json.loads(backend.to_str())
    state["added_tokens"] = state["added_tokens"][:3]  # byte tokens are ordinary ones
    backend = Backend.from_str(json.dumps(state))
    backend.post_processor = processors.TemplateProcessing(single=["<s>", "$A"], special_tokens=[("<s>", 1)])
    return backend


def gguf_keys(backend: Backend, pre: str | None, /, **changes: object) -> dict[str, object]:
    """The backend as a GGUF file's keys; `changes` replaces some by `name=value`, and None drops one."""
    model = json.loads(backend.to_str())["model"]
    tokens = [backend.id_to_token(token_id) for token_id in range(backend.get_vocab_size())]
    kinds = {**dict.fromkeys(SPECIAL, 3), **dict.fromkeys(USER_DEFINED, 4)}
    keys: dict[str, object] = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [kinds.get(token, 1) for token in tokens],
        "merges": [" ".join(merge) for merge in model["merges"]],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_bos_token": False,
        **changes,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in keys.items() if value is not None}


@dataclass(frozen=True)
class Scored:
    """A vocabulary as SentencePiece's own files have it: a score and a type for each token, and no merges."""

    tokens: list[str]
    scores: list[float]
    types: list[int]

    def twin(self) -> Twin:
        return Twin(self.tokens, self.scores, self.types, unknown_id=0)

    def gguf_keys(self, /, **changes: object) -> dict[str, object]:
        """The vocabulary as a GGUF file's keys; `changes` replaces some by `name=value`, and None drops one."""
        keys = {"model": "llama", "tokens": self.tokens, "scores": self.scores, "token_type": self.types, **changes}
        return {f"tokenizer.ggml.{name}": value for name, value in keys.items() if value is not None}


@cache
def train_scored(*, num_merged: int = 500, has_bytes: bool = True) -> Scored:
    """In the order of Llama 2's: special tokens, bytes, merged tokens by falling score, then single characters."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    trainer = trainers.BpeTrainer(vocab_size=num_merged + 250, show_progress=False, max_token_length=9)
    backend.train_from_iterator([*(" ".join([text] * 2) for text in CORPUS), " ".join(WORDS * 2)], trainer)
    names = [backend.id_to_token(token_id) for token_id in range(backend.get_vocab_size())]
    merged = [name for name in names if len(name) > 1]
    groups: list[tuple[int, list[str]]] = [
        (kinds.UNKNOWN, ["<unk>"]),
        (kinds.CONTROL, ["<s>", "</s>", "<|im_end|>"]),
        (kinds.BYTE, [f"<0x{byte:02X}>" for byte in range(256)] if has_bytes else []),
        (kinds.NORMAL, merged),
        (kinds.NORMAL, [name for name in names if len(name) == 1]),
        (kinds.USER_DEFINED, ["<think>", "    "]),
        (kinds.UNUSED, ["[PAD0]", "[PAD1]"]),
    ]
    typed = [(name, kind) for kind, group in groups for name in group]
    scores = {name: -float(rank) for rank, name in enumerate([*merged, *(n for n in names if len(n) == 1)])}
    return Scored([name for name, _ in typed], [scores.get(name, 0.0) for name, _ in typed], [k for _, k in typed])


@cache
def unigram_scored(*, has_bytes: bool = True) -> Scored:
    """The same with scores as of a unigram model, of which hardly two sums are equal."""
    made, rng = train_scored(has_bytes=has_bytes), random.Random(1)
    typed = zip(made.tokens, made.types, strict=True)
    scores = [-rng.uniform(2, 3 + 12 / len(token)) if kind == kinds.NORMAL else 0.0 for token, kind in typed]
    return Scored(made.tokens, scores, made.types)


def from_gguf_keys(keys: Mapping[str, object]) -> Tokenizer:
    parts = read_gguf_tokenizer(keys, Path("model.gguf"))
    assert parts is not None
    return Tokenizer(parts)


def write_directory(directory: Path, backend: Backend, settings: Mapping[str, object] | None = None) -> Path:
    backend.save(str(directory / "tokenizer.json"))
    if settings is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def from_directory(
    directory: Path, config: Mapping[str, object] | None = None, generation: Mapping[str, object] | None = None
) -> Tokenizer:
    parts = read_huggingface_tokenizer(directory, config or {}, generation or {})
    assert parts is not None
    return Tokenizer(parts)


def pushed(tokenizer: Tokenizer, ids: Sequence[int], *, skip_special_tokens: bool = False) -> list[str]:
    """What a stream emits, push by push, and last what `finish` adds."""
    stream = tokenizer.stream(skip_special_tokens=skip_special_tokens)
    return [*map(stream.push, ids), stream.finish()]
