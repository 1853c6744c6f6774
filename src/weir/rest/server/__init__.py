"""The REST server's process side: connections, routes, start and stop."""
