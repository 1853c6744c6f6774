"""The vocabulary of the protocol: every event and effect of the machines, as frozen dataclasses."""
