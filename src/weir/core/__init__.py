"""The protocol core: state machines that take events and the time, and return effects.

No Spark, no clock, no threads, no randomness.
"""
