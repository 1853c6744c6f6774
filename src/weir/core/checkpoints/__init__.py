"""The checkpoints of one job: requests, pending and completed ones, failures and statistics."""
