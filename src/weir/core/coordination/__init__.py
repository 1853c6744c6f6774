"""Operator coordinators in the protocol, with exactly-once delivery of events."""
