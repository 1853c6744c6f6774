"""Durable storage: file systems, the arbitrating numbered log, metadata, checkpoint storage."""
