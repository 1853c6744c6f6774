"""Reaches a running job from other threads: REST, signals and the terminal."""
