"""Keyed state and operator state of Python operators, by whole Arrow arrays (MISSION B7)."""
