"""The production core, dispatcher and durable part on virtual time, with seeded faults, and an
auditor that watches."""
