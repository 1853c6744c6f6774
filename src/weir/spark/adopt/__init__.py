"""Taking over ordinary Structured Streaming scripts: what has to be done inside Spark."""
