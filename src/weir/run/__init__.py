"""Running a job in this process: options, submission, lease, and how the parts are put together."""
