"""What the handlers of all endpoints use: the jobs served, guards, operations."""
