"""The checkpoints of one job: requests, pending and completed checkpoints, failures and
statistics."""
