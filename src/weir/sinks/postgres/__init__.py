"""``PostgresTable``: PostgreSQL tables, committed in one transaction per epoch."""
