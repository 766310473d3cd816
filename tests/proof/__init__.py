"""What tests of identity run: tiny models in every form, digests of their logits, the same in other processes."""
