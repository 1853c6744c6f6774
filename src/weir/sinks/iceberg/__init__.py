"""``IcebergTable``: Iceberg tables, committed by pyiceberg."""
