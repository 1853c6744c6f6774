"""Jobs in the caller's process: ``Job.start``, ``Job.run``, and what a run prints."""
