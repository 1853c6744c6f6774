"""Running ordinary Structured Streaming scripts as Weir jobs, with no line changed."""
