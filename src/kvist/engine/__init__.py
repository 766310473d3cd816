"""Serving requests: what was asked for, which step comes next, which token was chosen."""
