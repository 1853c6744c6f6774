"""Python operators in Spark's plans and workers."""
