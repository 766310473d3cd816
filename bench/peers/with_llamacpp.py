"""llama.cpp through llama-cpp-python's own C functions, since its ``Llama`` serves one user at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import llama_cpp as ll
import numpy as np
import numpy.typing as npt
from peer import USER_ANSWER, USER_PROMPT, Asked, Engine, TokenIds, serve

BATCH = 512
TYPES = {"f16": (1, 2.0), "q8_0": (ll.GGML_TYPE_Q8_0, 34 / 32), "q4_0": (ll.GGML_TYPE_Q4_0, 18 / 32)}
"""ggml's number of each type, and the bytes that one value takes."""


class LlamaCpp:
    name = "llama.cpp"
    version = f"llama-cpp-python {ll.__version__}"

    def __init__(self, asked: Asked) -> None:
        self.threads, self.context_length = asked.threads, asked.context
        self.kv = "f16" if asked.kv == "default" else asked.kv
        ll.llama_backend_init()
        ll.llama_log_set(_QUIET, None)
        self.model = ll.llama_model_load_from_file(asked.model.encode(), ll.llama_model_default_params())
        assert self.model, f"llama.cpp can't load {asked.model}"
        self.weights = "as in the file"
        heads = ll.llama_model_n_head(self.model)
        width = ll.llama_model_n_embd(self.model) // heads
        values = 2 * ll.llama_model_n_layer(self.model) * ll.llama_model_n_head_kv(self.model) * width
        self.kv_bytes = values * TYPES[self.kv][1]
        self.vocabulary = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(self.model))
        self.batch = ll.llama_batch_init(BATCH, 0, 1)
        self._contexts: dict[int, ll.llama_context_p] = {}
        self._held: TokenIds = []

    def context(self, num_users: int) -> ll.llama_context_p:
        """Return a context with room for so many; flash attention is on, as a quantised cache needs it."""
        if num_users not in self._contexts:
            params = ll.llama_context_default_params()
            params.n_ctx = self.context_length if num_users == 1 else num_users * (USER_PROMPT + USER_ANSWER)
            params.n_batch = params.n_ubatch = BATCH
            params.n_seq_max = num_users
            params.n_threads = params.n_threads_batch = self.threads
            params.type_k = params.type_v = TYPES[self.kv][0]
            params.flash_attn_type = ll.LLAMA_FLASH_ATTN_TYPE_ENABLED
            params.offload_kqv = False
            made = ll.llama_init_from_model(self.model, params)
            assert made, f"llama.cpp makes no context for {num_users} users with a cache in {self.kv}"
            self._contexts[num_users] = made
        return self._contexts[num_users]

    def stream(self, prompt: TokenIds, num_tokens: int) -> Iterator[int]:
        """What the last prompt and this one begin with alike stays in the cache, as in ``Llama.generate``."""
        context = self.context(1)
        shared = min(_common(self._held, prompt), len(prompt) - 1)
        ll.llama_memory_seq_rm(ll.llama_get_memory(context), 0, shared, -1)
        self._held = list(prompt)
        rows = [(token, place, 0) for place, token in enumerate(prompt)][shared:]
        for generated in range(num_tokens):
            token = int(self._decode(context, rows, [len(rows) - 1])[0])
            yield token
            rows = [(token, len(prompt) + generated, 0)]

    def generate(self, prompts: Sequence[TokenIds], num_tokens: int) -> list[TokenIds]:
        context = self.context(len(prompts))
        ll.llama_memory_clear(ll.llama_get_memory(context), True)
        self._held = []
        rows = [(token, place, user) for user, prompt in enumerate(prompts) for place, token in enumerate(prompt)]
        ends = np.cumsum([len(prompt) for prompt in prompts]) - 1
        answers: list[TokenIds] = [[] for _ in prompts]
        for generated in range(num_tokens):
            tokens = self._decode(context, rows, [int(end) for end in ends])
            for answer, token in zip(answers, tokens, strict=True):
                answer.append(int(token))
            rows = [
                (answer[-1], len(prompt) + generated, user)
                for user, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
            ]
            ends = np.arange(len(prompts))
        return answers

    def _decode(
        self, context: ll.llama_context_p, rows: list[tuple[int, int, int]], wanted: list[int]
    ) -> npt.NDArray[np.int64]:
        """Compute rows of (token, position, user) in batches; return the likeliest token after each wanted one."""
        is_wanted, found = set(wanted), []
        for start in range(0, len(rows), BATCH):
            piece = rows[start : start + BATCH]
            self.batch.n_tokens = len(piece)
            for place, (token, position, user) in enumerate(piece):
                self.batch.token[place] = token
                self.batch.pos[place] = position
                self.batch.n_seq_id[place] = 1
                self.batch.seq_id[place][0] = user
                self.batch.logits[place] = start + place in is_wanted
            assert ll.llama_decode(context, self.batch) == 0, "llama_decode failed"
            for place in range(len(piece)):
                if start + place in is_wanted:
                    logits = ll.llama_get_logits_ith(context, place)
                    found.append(np.ctypeslib.as_array(logits, (self.vocabulary,)).argmax())
        return np.array(found, np.int64)


@ll.llama_log_callback
def _QUIET(_level: int, _text: bytes, _data: object) -> None:  # noqa: N802 - a constant as the C side sees it
    pass


def _common(held: TokenIds, prompt: TokenIds) -> int:
    return next((i for i, (a, b) in enumerate(zip(held, prompt, strict=False)) if a != b), min(len(held), len(prompt)))


def load(asked: Asked) -> Engine:
    return LlamaCpp(asked)


if __name__ == "__main__":
    serve(load)
