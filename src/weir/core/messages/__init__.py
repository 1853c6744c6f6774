"""The protocol's messages: every event and effect of the machines, as frozen dataclasses."""
