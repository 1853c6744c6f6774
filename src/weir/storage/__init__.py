"""Where checkpoints live: file systems, the numbered log that arbitrates, the metadata codec and
checkpoint storage."""
