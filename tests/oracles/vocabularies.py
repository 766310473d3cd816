"""Real vocabularies out of wheels that carry one (`make oracles` installs these), as the keys of a GGUF file.

They are converted as llama.cpp's scripts do it: a tiktoken file has no merges, so each token's are found again by
joining its bytes as long as what comes out ranks before it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import files
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from kvist.checkpoint.token_spelling import BYTE_CHARACTERS

Keys = dict[str, object]


def in_wheel(package: str, name: str) -> Path:
    """A file of an installed package by the end of its path."""
    return next(Path(str(file.locate())) for file in files(package) or [] if str(file).endswith(name))


def keys_of(**values: object) -> Keys:
    return {f"tokenizer.ggml.{name}": value for name, value in values.items()}


def tiktoken_ranks(path: Path) -> dict[bytes, int]:
    lines = (line.split() for line in path.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def tekken_ranks(path: Path) -> tuple[dict[bytes, int], str]:
    """Mistral's own format: the ranks that are in use, and the pattern that cuts words."""
    content = json.loads(path.read_text())
    config = content["config"]
    size = config["default_vocab_size"] - config["default_num_special_tokens"]
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in content["vocab"][:size]}
    return ranks, config["pattern"]


def byte_level_keys(ranks: Mapping[bytes, int], pre: str) -> Keys:
    """Ids are ranks; ids without a token have a name of their own."""
    tokens = [f"[PAD{number}]" for number in range(max(ranks.values()) + 1)]
    for token, rank in ranks.items():
        tokens[rank] = spelled(token)
    merges = [f"{spelled(left)} {spelled(right)}" for left, right in merges_of(ranks)]
    return keys_of(model="gpt2", pre=pre, tokens=tokens, merges=merges, add_bos_token=False)


def spelled(token: bytes) -> str:
    return "".join(BYTE_CHARACTERS[byte] for byte in token)


def merges_of(ranks: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            found = [(ranks.get(parts[n] + parts[n + 1], rank), n) for n in range(len(parts) - 1)]
            best, at = min(found)
            if best >= rank:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            yield parts[0], parts[1]


def json_keys(content: dict[str, Any], pre: str) -> Keys:
    """A tokenizer.json with byte-level BPE."""
    added = {token["id"]: token for token in content["added_tokens"]}
    names = {token_id: token for token, token_id in content["model"]["vocab"].items()}
    names |= {token_id: token["content"] for token_id, token in added.items()}
    types = [
        (gguf.TokenType.CONTROL if added[i]["special"] else gguf.TokenType.USER_DEFINED).value
        if i in added
        else gguf.TokenType.NORMAL.value
        for i in range(len(names))
    ]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in content["model"]["merges"]]
    tokens = [names[i] for i in range(len(names))]
    return keys_of(model="gpt2", pre=pre, tokens=tokens, merges=merges, token_type=types, add_bos_token=False)


def sentencepiece_keys(
    model: sentencepiece.SentencePieceProcessor, *, defined: Sequence[str] = (), **more: object
) -> Keys:
    """Pieces of `defined` are user-defined and have spaces for what they are, as where another file names them."""
    tokens, types = [], []
    for i in range(model.vocab_size()):
        kinds = (
            (model.is_unknown, gguf.TokenType.UNKNOWN),
            (model.is_control, gguf.TokenType.CONTROL),
            (model.is_unused, gguf.TokenType.UNUSED),
            (model.is_byte, gguf.TokenType.BYTE),
            (lambda i: model.id_to_piece(i) in defined, gguf.TokenType.USER_DEFINED),
        )
        kind = next((kind for is_kind, kind in kinds if is_kind(i)), gguf.TokenType.NORMAL)
        is_defined = kind is gguf.TokenType.USER_DEFINED
        tokens.append(model.id_to_piece(i).replace("▁", " ") if is_defined else model.id_to_piece(i))
        types.append(kind.value)
    scores = [model.get_score(i) for i in range(model.vocab_size())]
    return keys_of(model="llama", tokens=tokens, scores=scores, token_type=types, **more)


def unigram_keys(model: sentencepiece.SentencePieceProcessor, data: bytes) -> Keys:
    """As llama.cpp's script converts T5's: the normaliser's map and switches stand in the file."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(data)
    rules = proto.normalizer_spec
    more = (
        {"precompiled_charsmap": np.frombuffer(rules.precompiled_charsmap, np.uint8)}
        if rules.precompiled_charsmap
        else {}
    )
    return sentencepiece_keys(model) | keys_of(
        model="t5",
        unknown_token_id=model.unk_id(),
        add_space_prefix=rules.add_dummy_prefix,
        remove_extra_whitespaces=rules.remove_extra_whitespaces,
        add_eos_token=False,
        **more,
    )
