"""Rows on which a step raises: set aside inside Spark's plan, and gathered with each batch."""
