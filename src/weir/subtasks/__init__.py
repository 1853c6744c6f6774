"""Runs the subtasks of Python operators, and the driver's part of it: without Spark."""
