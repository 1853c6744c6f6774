"""For those who read what jobs wrote: one cut through several tables, and the state in a
snapshot."""
