"""Runs the core: the clock, the main thread, and the dispatcher that executes effects."""
