"""Benchmarks of Weir against plain Structured Streaming; ``docs/PERFORMANCE.md`` says what they
measure."""
