"""The durable part of a job: its records, checkpoints and sink commits. Does not need Spark."""
