"""What a script writes to, as sinks of its job."""
