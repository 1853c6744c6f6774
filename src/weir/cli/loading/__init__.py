"""Executes the file that a command names, and finds its job."""
