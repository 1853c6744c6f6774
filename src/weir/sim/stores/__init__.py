"""The product's sinks and its object storage over simulated stores that fail and answer late.

The sinks and the object store's file system are the product's, down to pyiceberg. What lies below
them is simulated: obstore's requests, psycopg's connections, an Iceberg catalog, delta-rs with the
log of a table, and a Kafka cluster with its clients. Each of these modules says what may happen
there, and has the faults of its store beside its behaviour; ``faults.py`` has what goes wrong on
the way to any of them.

A statement that the simulated PostgreSQL server does not know fails the run, so a sink that needs a
new statement must teach it to ``postgres.py``. Tests run the sinks and the file system over the
simulated server, bucket and log, and over a real server, obstore and delta-rs, and compare each
step; of Kafka, they compare the clients themselves.
"""
