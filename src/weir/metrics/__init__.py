"""The figures of a job: one table of metrics, for Prometheus and REST."""
