"""Flink's REST API for a running Weir job, for Flink's clients and Weir's command line."""
