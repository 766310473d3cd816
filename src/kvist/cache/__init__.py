"""The KV cache: where (pool, store) x how encoded (codec) x what is kept (retention) x who shares (prefix)."""
