"""Jobs whose driver is gone: the archive, and what a checkpoint directory shows."""
