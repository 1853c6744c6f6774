"""Flink's REST API: answers are pure functions of a job's view, handlers look it up."""
