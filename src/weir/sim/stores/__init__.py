"""Weir's own sinks and its object storage over simulated stores that fail and answer late."""
