"""Runs the core: the clock, the one main thread, and the dispatcher that carries effects out
through ports."""
