"""One streaming query per task: its plan, its run, and the task port above all queries."""
