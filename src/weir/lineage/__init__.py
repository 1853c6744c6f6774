"""Lineage: the datasets that a job reads and writes, and OpenLineage's events about them."""
