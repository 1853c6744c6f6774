"""Starts Spark: the JVM, its class archive, the session and its settings."""
