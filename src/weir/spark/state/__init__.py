"""The directory of a query, and its snapshots: taken, read, restored, rescaled, assembled."""
