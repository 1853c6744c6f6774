"""The job master: one job from submission to its end, with restarts and stops."""
