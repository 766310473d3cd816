"""How many heads a layer has and how wide they are, by the rules of the reference implementation's model code.

A rule takes the config's fields and a layer's kind (``spec.layer_types``) and returns its Heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvist.errors import SpecError
from kvist.spec.fields import Fields

WIDTH = ("hidden_size", "n_embd", "d_model", "n_embed", "dim")
HEADS = ("num_attention_heads", "decoder_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "num_attention_groups")


@dataclass(frozen=True)
class Heads:
    """Query heads, KV heads and the widths of one key and one value; a latent is one key and no value."""

    num_heads: int
    num_kv_heads: int
    k_dim: int
    v_dim: int
    is_latent: bool = False


Rule = Callable[[Fields, str], Heads]


def grouped(fields: Fields, _kind: str) -> Heads:
    """KV heads as stated, as many as query heads where none are; head_dim as stated, else width / heads."""
    num_heads = fields.count(*HEADS)
    return _heads(fields, num_heads, fields.maybe_count(*KV_HEADS) or num_heads, fields.maybe_count("head_dim"))


def assumed(fields: Fields, kind: str) -> Heads:
    """Like grouped, and one KV head where multi_query is all that is said: for model types without rules."""
    heads = grouped(fields, kind)
    says_how_many = any(fields.has(key) for key in KV_HEADS)
    return replace(heads, num_kv_heads=1) if fields.value("multi_query") is True and not says_how_many else heads


def width_by_heads(fields: Fields, _kind: str) -> Heads:
    """Like grouped, but a stated head_dim is ignored, as the model code does."""
    num_heads = fields.count(*HEADS)
    return _heads(fields, num_heads, fields.maybe_count(*KV_HEADS) or num_heads, None)


def multi_head(fields: Fields, _kind: str) -> Heads:
    """As many KV heads as query heads, whatever else is stated."""
    num_heads = fields.count(*HEADS)
    return _heads(fields, num_heads, num_heads, None)


def multi_query(fields: Fields, _kind: str) -> Heads:
    """One KV head unless multi_query is switched off (GPT-BigCode)."""
    num_heads = fields.count(*HEADS)
    return _heads(fields, num_heads, 1 if fields.flag("multi_query") else num_heads, None)


def falcon(fields: Fields, _kind: str) -> Heads:
    """One KV head in the old architecture with multi_query, else the stated KV heads."""
    num_heads = fields.count(*HEADS)
    num_kv_heads = fields.maybe_count(*KV_HEADS) or num_heads
    if fields.flag("multi_query") and not fields.flag("new_decoder_architecture"):
        num_kv_heads = 1
    return _heads(fields, num_heads, num_kv_heads, None)


def dbrx(fields: Fields, _kind: str) -> Heads:
    """KV heads in a nested object, one where it doesn't say."""
    num_kv_heads = fields.nested("attn_config").maybe_count("kv_n_heads") or 1
    return _heads(fields, fields.count(*HEADS), num_kv_heads, None)


def t5(fields: Fields, _kind: str) -> Heads:
    """Head width d_kv, independent of the model's width."""
    num_heads = fields.count(*HEADS)
    return _heads(fields, num_heads, num_heads, fields.count("d_kv"))


def jetmoe(fields: Fields, _kind: str) -> Heads:
    """Query heads are the KV heads times the experts a token uses; head width kv_channels."""
    num_kv_heads = fields.count("num_key_value_heads")
    return _heads(fields, num_kv_heads * fields.count("num_experts_per_tok"), num_kv_heads, fields.count("kv_channels"))


def gemma4(fields: Fields, kind: str) -> Heads:
    """Full layers have heads of their own width and, where K and V are one projection, of their own number."""
    heads = grouped(fields, kind)
    if kind != "full_attention":
        return heads
    num_kv_heads = fields.maybe_count("num_global_key_value_heads") if fields.flag("attention_k_eq_v") else None
    head_dim = fields.count("global_head_dim")
    return _heads(fields, heads.num_heads, num_kv_heads or heads.num_kv_heads, head_dim)


def mimo(fields: Fields, kind: str) -> Heads:
    """Keys wider than values; sliding layers have twice the KV heads unless they state heads of their own."""
    is_sliding = kind == "sliding_attention"
    own = "swa_" if is_sliding else ""
    kv_heads = fields.count("num_key_value_heads") * (2 if is_sliding else 1)
    return Heads(
        fields.maybe_count(own + "num_attention_heads") or fields.count("num_attention_heads"),
        (fields.maybe_count("swa_num_key_value_heads") if is_sliding else None) or kv_heads,
        fields.maybe_count(own + "head_dim") or fields.count("head_dim"),
        fields.maybe_count(own + "v_head_dim") or fields.count("v_head_dim"),
    )


def twice_as_wide(fields: Fields, _kind: str) -> Heads:
    """Attention over the hidden state beside the embedding: twice the width (Zamba 2)."""
    num_heads = fields.count(*HEADS)
    return _heads(fields, num_heads, fields.maybe_count(*KV_HEADS) or num_heads, 2 * fields.count(*WIDTH) // num_heads)


def latent(fields: Fields, _kind: str) -> Heads:
    """One latent a token and a rotary key beside it, shared by all heads."""
    k_dim = fields.count("kv_lora_rank") + fields.count("qk_rope_head_dim", least=0)
    return Heads(fields.count(*HEADS), 1, k_dim, 0, is_latent=True)


def _heads(fields: Fields, num_heads: int, num_kv_heads: int, head_dim: int | None) -> Heads:
    if head_dim is None:
        width = fields.count(*WIDTH)
        head_dim = width // num_heads
        if not head_dim:
            raise SpecError(f"the config's {num_heads} heads are more than its width {width}")
    return Heads(num_heads, num_kv_heads, head_dim, head_dim)
