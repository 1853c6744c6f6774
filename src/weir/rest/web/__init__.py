"""The web page: its files, and the answers made for it."""
