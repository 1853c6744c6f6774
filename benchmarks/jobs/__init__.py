"""Scripts and pipelines that the benchmarks run with ``python FILE`` and ``weir run FILE``."""
