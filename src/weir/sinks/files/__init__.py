"""``Files``: directories of files that appear whole."""
