"""The job master: runs one job from submission to its end, with restarts and stops."""
