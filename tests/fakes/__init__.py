"""A small model that isn't one: real cache, real tokenizer, real engine, and logits made from a hash."""
