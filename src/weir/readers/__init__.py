"""Readers of what jobs wrote: a consistent cut through several tables, the state in a snapshot."""
