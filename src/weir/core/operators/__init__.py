"""Operator coordinators in the protocol: events that are delivered exactly once."""
