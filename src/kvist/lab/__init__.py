"""Measuring and drawing: benchmarks that print the machine's ceiling first, and their figures."""
