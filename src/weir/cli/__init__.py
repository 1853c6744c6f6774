"""The command line: one module for each command that is more than a request to a running job."""
