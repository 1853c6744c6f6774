"""``DeltaTable``: Delta tables, committed by delta-rs."""
