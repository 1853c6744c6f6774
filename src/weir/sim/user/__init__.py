"""Simulates the jobs of users: their own code, under the same faults and laws."""
