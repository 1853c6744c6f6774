"""Kafka through Spark's connector: its jars, topics and offsets."""
