"""What of a job must last: its records, its checkpoints, and what its sinks commit. Needs no
Spark."""
