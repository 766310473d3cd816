r"""How a GGUF file's `tokenizer.ggml.pre` cuts text into the pieces that byte-pair merges stay inside of.

The names are llama.cpp's, one for each tokenizer that its converter has met; the patterns are those of the
models' own tokenizer.json files, with classes such as \p{Lu} where llama.cpp's regex engine makes do with
less. Several patterns apply one after the other: each cuts the pieces that the earlier ones left, and both
what it matches and what lies between stay. A file records no Unicode normalisation, so none is done.

Left out are names whose vocabulary is not byte-level (gemma4, sarvam-moe, whitespace), that have no merges
(kimi-k2), that need code of their own (afmoe, youtu), or that belong to encoders (jina-*, roberta-bpe).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvist.errors import UnsupportedError

_DIGIT = r"\p{N}"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _cl100k(number: str, *, word: str = r"[^\r\n\p{L}\p{N}]?\p{L}+", spaces: str = _WORD_SPACES) -> str:
    """The pattern of cl100k and its many descendants, which differ in how many digits stand together."""
    return rf"{_CONTRACTION}|{word}|{number}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{spaces}"


def _o200k(number: str, *, contraction: str = _CONTRACTION + "?") -> str:
    """The pattern of o200k: a word breaks where lower case turns to upper; a contraction stays with its word."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    start = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{start}{upper}*{lower}+{contraction}|{start}{upper}+{lower}*{contraction}|{number}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_WORD_SPACES}"
    )


_LLAMA3 = _cl100k(r"\p{N}{1,3}")
_QWEN2 = _cl100k(r"\p{N}")
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_WORD_SPACES}"
)
_CASCADED_SPACES = "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
_JAIS2 = _cl100k(r"\p{N}{1,3}", spaces=rf"\s*[\r\n]+{_CASCADED_SPACES}|\s")
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED_CODER = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_WORD_SPACES}"
_EXAONE_MOE = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    (
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_WORD_SPACES}"
    ),
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", _DIGIT)
_DEEPSEEK_LLM_LETTERS = (
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LLM_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}+",
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


@dataclass(frozen=True)
class PreTokenizer:
    """One name's rules, and what llama.cpp takes for granted where the file is silent.

    `ignore_merges`: a piece that is itself a token stays whole. `add_bos`: whether `add_bos_token` is true
    when the file doesn't say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_FAMILIES: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat a.x-4.0 mellum exaone4": PreTokenizer((_GPT2,)),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": PreTokenizer((_DIGIT, _GPT2)),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2": PreTokenizer((_LLAMA3,), True, True),
    "dbrx smaug-bpe chatglm-bpe": PreTokenizer((_LLAMA3,)),
    "glm4 glm5": PreTokenizer((_LLAMA3,), True),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", _cl100k(r"\p{N}+")), True),
    "jais-2": PreTokenizer((_JAIS2,)),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan solar-open grok-2": PreTokenizer((_QWEN2,)),
    "ufakzeka": PreTokenizer((_QWEN2.removeprefix(_CONTRACTION + "|"),)),
    "qwen35": PreTokenizer((_QWEN35,)),
    "laguna": PreTokenizer((r"[^\n]+|[\n]+", _QWEN2)),
    "bailingmoe bailingmoe2 llada-moe": PreTokenizer((_BAILING,)),
    "seed-coder": PreTokenizer((_SEED_CODER,)),
    "exaone-moe": PreTokenizer((_EXAONE_MOE,)),
    "tekken": PreTokenizer((_o200k(r"\p{N}", contraction=""),), True, True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": PreTokenizer((_o200k(r"\p{N}{1,3}"),)),
    "deepseek-llm": PreTokenizer(_DEEPSEEK_LLM),
    "deepseek-coder": PreTokenizer(_DEEPSEEK_CODER),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": PreTokenizer(_DEEPSEEK_V3),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "bloom poro-chat gpt3-finnish": PreTokenizer((_BLOOM,)),
    "viking": PreTokenizer((_BLOOM, _DIGIT)),
    "superbpe": PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
}
PRETOKENIZERS: dict[str, PreTokenizer] = {name: rules for names, rules in _FAMILIES.items() for name in names.split()}


def pretokenizer_named(name: str) -> PreTokenizer:
    """The rules for one `tokenizer.ggml.pre`; raises UnsupportedError, which lists the known names."""
    rules = PRETOKENIZERS.get(name)
    if rules is None:
        raise UnsupportedError(
            f"unknown pre-tokenizer {name!r} in tokenizer.ggml.pre; known: {', '.join(sorted(PRETOKENIZERS))}"
        )
    return rules
