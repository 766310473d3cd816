"""Compiled kernels: the only package that imports Numba. Arrays, ints and floats in; the caller's arrays out."""
