"""Flink's REST API over a running Weir job: Flink's clients and dashboards, and Weir's own command
line, speak to it."""
