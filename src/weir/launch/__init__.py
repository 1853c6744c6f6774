"""Running a job in this process: options, submission, lease, and wiring."""
