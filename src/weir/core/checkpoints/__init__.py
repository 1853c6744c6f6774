"""The checkpoints of a job: requests, pending, completed and failed checkpoints, statistics."""
