"""Scripts and pipelines that the benchmarks run as a user does: with ``python FILE`` and
``weir run FILE``."""
