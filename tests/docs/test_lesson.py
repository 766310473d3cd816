"""Solutions of the lesson's exercises, checked: one section a page of docs/lesson, in the order of its exercises."""

from __future__ import annotations

import hashlib
import json
import math
import random
from typing import Any

import numpy as np
import pytest
from markdown import ROOT, code_blocks

from kvist.cache.codec import turn
from kvist.reference import GptConfig, KeyValueCache, forward, generate_cached, rope_frequencies
from kvist.spec.cache import CacheSpec, bytes_per_token
from kvist.spec.config import model_spec_from_config

LESSON = ROOT / "docs" / "lesson"
GIB = 2**30
LLAMA_8B = model_spec_from_config(
    {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
    }
)
LLAMA_8B_TOKEN_BYTES = 2 * 32 * 8 * 128 * 2


def names_of(page: str) -> dict[str, Any]:
    """What a page's first block defines."""
    names: dict[str, Any] = {"__name__": "__main__"}
    first = next(block for block in code_blocks(LESSON / page) if block.language == "python")
    exec(first.text, names)
    return names


# ---- 1. Why a cache --------------------------------------------------------------------------------------------


def rows_uncached(prompt_tokens: int, new_tokens: int) -> int:
    return new_tokens * prompt_tokens + new_tokens * (new_tokens - 1) // 2


def rows_cached(prompt_tokens: int, new_tokens: int) -> int:
    return prompt_tokens + new_tokens - 1


def test_1_1_rows_as_a_formula() -> None:
    for prompt_tokens, new_tokens in ((5, 10), (1, 1), (100, 37)):
        assert rows_uncached(prompt_tokens, new_tokens) == sum(prompt_tokens + step for step in range(new_tokens))


def test_1_2_the_saving_grows_with_what_is_generated() -> None:
    assert round(rows_uncached(2_000, 50) / rows_cached(2_000, 50)) == 49
    assert round(rows_uncached(50, 2_000) / rows_cached(50, 2_000)) == 1_024


def generate_in_chunks(
    weights: dict[str, Any], config: GptConfig, prompt: list[int], num_tokens: int, chunk: int
) -> list[int]:
    cache = KeyValueCache(config, len(prompt) + num_tokens)
    for start in range(0, len(prompt), chunk):
        logits = forward(weights, config, prompt[start : start + chunk], cache)
    generated = [int(np.argmax(logits[-1]))]
    while len(generated) < num_tokens:
        generated.append(int(np.argmax(forward(weights, config, generated[-1:], cache)[-1])))
    return generated


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 8])
def test_1_3_a_prompt_in_chunks(chunk: int) -> None:
    names = names_of("1-why-a-cache.md")
    weights, config, prompt = names["weights"], names["config"], names["prompt"]
    assert generate_in_chunks(weights, config, prompt, 20, chunk) == generate_cached(weights, config, prompt, 20)


# ---- 2. What it costs ------------------------------------------------------------------------------------------


def test_2_1_where_the_cache_outgrows_the_weights() -> None:
    assert math.ceil(8_030_261_248 * 2 / LLAMA_8B_TOKEN_BYTES) == 122_533


def int8_bytes(num_layers: int, num_kv_heads: int, head_dim: int) -> int:
    return 2 * num_layers * num_kv_heads * (head_dim + 2)


def test_2_2_eight_bits_and_a_scale() -> None:
    assert int8_bytes(32, 8, 128) == bytes_per_token(LLAMA_8B, CacheSpec("int8"))
    assert [round(int8_bytes(1, 1, dim) / (2 * dim * 2), 3) for dim in (64, 128)] == [0.516, 0.508]


def bytes_at(tokens: int, windowed_layers: int) -> int:
    a_layer = 2 * 4 * 128 * 2
    return a_layer * ((48 - windowed_layers) * tokens + windowed_layers * min(tokens, 1_024))


def test_2_3_half_the_layers_with_a_window() -> None:
    first = next(tokens for tokens in range(1, 10_000) if 3 * bytes_at(tokens, 24) < 2 * bytes_at(tokens, 0))
    assert first == 3_073


# ---- 3. Prefill and decode -------------------------------------------------------------------------------------


def step_seconds(users: int, context: int, share_of_bf16: float) -> float:
    return (135_000_000 * 0.625 + users * context * 23_040 * share_of_bf16) / 30e9


def test_3_1_sixteen_users() -> None:
    steps = [step_seconds(16, 2_000, share) for share in (1, 0.516)]
    assert [round(step * 1e3, 1) for step in steps] == [27.4, 15.5]
    assert [round(16 / step) for step in steps] == [584, 1_033]


def chunk_rows(gap_seconds: float) -> int:
    return max(1, int(gap_seconds * 6_000 / 1.6))  # at least one, or the prompt never ends


def test_3_2_a_prompt_in_pieces_of_bounded_time() -> None:
    assert chunk_rows(0.04) == 150
    assert chunk_rows(0) == 1


# ---- 4. Blocks -------------------------------------------------------------------------------------------------


def test_4_1_larger_blocks_waste_more() -> None:
    rng = random.Random(1)
    lengths = [rng.randint(50, 600) for _ in range(100)]

    def waste(block_tokens: int) -> float:
        return 1 - sum(lengths) / sum(-(-length // block_tokens) * block_tokens for length in lengths)

    assert waste(1) == 0  # and a table as long as the text, and no two keys side by side for a vector to read
    assert round(waste(16), 3) == 0.021
    assert 0.2 < waste(256) < 0.3


Store = dict[bytes, list[int]]


def named_blocks(token_ids: list[int]) -> list[tuple[bytes, list[int]]]:
    name, found = b"", []
    for start in range(0, len(token_ids) - len(token_ids) % 16, 16):
        block = token_ids[start : start + 16]
        name = hashlib.blake2b(name + np.array(block, np.int64).tobytes(), digest_size=16).digest()
        found.append((name, block))
    return found


def find(token_ids: list[int], store: Store) -> int:
    num_tokens = 0
    for name, block in named_blocks(token_ids):
        if store.get(name) != block:
            break
        num_tokens += len(block)
    return num_tokens


def test_4_2_finding_a_prefix() -> None:
    store = dict(named_blocks(list(range(64))))
    assert find(list(range(70)), store) == 64
    assert find([*range(16), *range(100, 116), *range(32, 64)], store) == 16, "what follows another block is other"
    lying = {name: [0] * 16 for name in store}
    assert find(list(range(64)), lying) == 0


def test_4_3_a_fork_shares_full_blocks_and_copies_the_last_when_one_writes() -> None:
    pool = {0: list(range(16)), 1: [16, 17]}
    first, second = [0, 1], [0, 1]
    pool[2] = list(pool[1])  # second writes into a block that both hold: a copy first
    second[-1] = 2
    pool[2].append(99)
    pool[1].append(18)  # first is the only owner of block 1 now
    assert [token for block in first for token in pool[block]] == list(range(19))
    assert [token for block in second for token in pool[block]] == [*range(18), 99]


# ---- 5. Windows and sinks --------------------------------------------------------------------------------------


def test_5_1_a_window_of_4096() -> None:
    a_token = 2 * 32 * 8 * 128 * 2
    assert [a_token * tokens / GIB for tokens in (32_768, 4_096)] == [4.0, 0.5]


def is_visible(query: int, key: int, sinks: int, window: int) -> bool:
    return key <= query and (key < sinks or key > query - window)


def test_5_2_what_a_query_sees() -> None:
    assert [key for key in range(20) if is_visible(10, key, 2, 4)] == [0, 1, 7, 8, 9, 10]
    assert [key for key in range(20) if is_visible(4, key, 2, 4)] == [0, 1, 2, 3, 4]


def test_5_3_another_window_gives_other_keys() -> None:
    """A token's key in the second layer depends on what it saw in the first."""
    names = names_of("1-why-a-cache.md")
    config, weights = names["config"], names["weights"]
    keys = []
    for window in (None, 4):
        windowed = GptConfig(config.num_layers, config.num_heads, config.num_kv_heads, 16, windows=(window, window))
        cache = KeyValueCache(windowed, 16)
        forward(weights, windowed, list(range(16)), cache)
        keys.append(cache.k)
    same = [np.array_equal(keys[0][layer, :, 15], keys[1][layer, :, 15]) for layer in range(2)]
    assert same == [True, False]


# ---- 6. Fewer bits ---------------------------------------------------------------------------------------------


def test_6_1_the_price_of_scales() -> None:
    assert [16 / count for count in (32, 128)] == [0.5, 0.125]


def hadamard(size: int) -> Any:
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.sqrt(size)


@pytest.mark.parametrize("size", [1, 2, 16, 64])
def test_6_2_a_hadamard_matrix(size: int) -> None:
    assert np.allclose(hadamard(size), turn(np.eye(size, dtype=np.float32)), atol=1e-6)
    assert np.allclose(hadamard(size) @ hadamard(size), np.eye(size))


def test_6_3_scales_by_dim_need_a_full_block() -> None:
    """What fits 15 tokens may not fit the 16th: until a block is full it is kept as it is, and not in fewer bits."""
    block = np.ones((16, 4))
    block[15] = 50
    early = np.abs(block[:15]).max(axis=0)
    assert (np.abs(block[15]) > early).all()


# ---- 7. Past the limit -----------------------------------------------------------------------------------------


def rows_sliding(prompt_tokens: int, new_tokens: int, positions: int) -> int:
    rows = held = prompt_tokens
    for _ in range(new_tokens - 1):
        if held == positions:
            held -= positions // 4
            rows += held
        held += 1
        rows += 1
    return rows


def test_7_1_learned_positions_compute_each_token_four_times() -> None:
    rows = rows_sliding(24, 10_000, 1_024)
    assert rows == 24 + 9_999 + 36 * 768
    assert 3 < rows / rows_cached(24, 10_000) < 4


def truncated(system: list[int], rest: list[int], room: int) -> tuple[list[int], int]:
    kept = min(len(rest), max(0, room - len(system)))
    return [*system, *rest[len(rest) - kept :]], len(rest) - kept


def test_7_2_the_system_message_stays_and_the_user_is_told_how_much_went() -> None:
    assert truncated([1, 2], [3, 4, 5, 6], 4) == ([1, 2, 5, 6], 2)
    assert truncated([1, 2], [3, 4], 10) == ([1, 2, 3, 4], 0)


def angle_seen(position: int, trained: int, frequency: float) -> bool:
    most = (trained - 1) * frequency
    return most >= 2 * math.pi or position * frequency % (2 * math.pi) <= most


def test_7_3_new_angles() -> None:
    config = GptConfig(num_layers=1, num_heads=1, num_kv_heads=1, head_dim=64, rope_theta=100_000.0)
    is_new = [not angle_seen(100_000, 8_192, float(frequency)) for frequency in rope_frequencies(config)]
    assert not any(is_new[:19])
    assert 0.2 < sum(is_new) / len(is_new) < 0.45


# ---- 8. How many users -----------------------------------------------------------------------------------------


def test_8_1_a_shared_prompt_counts_once() -> None:
    shared, apart = 1_000 + 100 * 500, 100 * 1_500
    assert [round(tokens * LLAMA_8B_TOKEN_BYTES / GIB, 1) for tokens in (shared, apart)] == [6.2, 18.3]


def test_8_2_a_card_of_24_gb() -> None:
    budget = (24 - 5 - 1) * GIB
    tokens = 8_192
    assert budget // (LLAMA_8B_TOKEN_BYTES * tokens) == 18
    assert budget // (bytes_per_token(LLAMA_8B, CacheSpec("int8")) * tokens) == 35


def fits(users: int, context: int, budget: int, token_bytes: int) -> bool:
    return users * -(-context // 16) * 16 * token_bytes <= budget


def test_8_3_blocks_round_up() -> None:
    assert fits(10, 160, 10 * 160, 1)
    assert not fits(10, 161, 10 * 161, 1), "the formula without blocks says yes"
    assert fits(10, 161, 10 * 176, 1)


# ---- The notebook ----------------------------------------------------------------------------------------------


def test_the_notebook_holds_the_pages() -> None:
    """Made by ``python tools/lesson_notebook.py``."""
    notebook = json.loads((LESSON / "lesson.ipynb").read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    blocks = [
        block for page in sorted(LESSON.glob("[1-9]*.md")) for block in code_blocks(page) if block.language == "python"
    ]
    assert ["".join(cell["source"]) + "\n" for cell in code] == [block.text for block in blocks]
