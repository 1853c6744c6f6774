"""Benchmarks of Weir against plain Structured Streaming; see ``docs/PERFORMANCE.md``."""
