"""Simulator: the production core in virtual time, with seeded faults and an auditor.

The core, the dispatcher and the durable part are the production code.
"""
