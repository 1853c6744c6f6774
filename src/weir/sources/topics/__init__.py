"""Weir's own reader of Kafka topics: ``KafkaTopic``."""
