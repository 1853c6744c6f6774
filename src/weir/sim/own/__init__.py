"""Weir's own simulated jobs: counting operators, and a model of Spark's query loop."""
