"""The command line: one module per command that does more than send a request to a job."""
