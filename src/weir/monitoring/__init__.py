"""Watches a job for REST, metrics, the web page and the log; nothing that runs the job is here."""
