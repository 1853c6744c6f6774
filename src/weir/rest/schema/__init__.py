"""The schema of the REST API: its messages and its endpoints, for server, client and documentation.

The server encodes the messages, the client decodes and checks them, and ``docs/REST*.md`` list
them, so that a field or a path is written down once. Paths, names and spellings in JSON are
Flink's. Conventions:

1. Times are milliseconds since the Unix epoch, durations milliseconds, sizes bytes. -1 stands for a
   time that is not known yet.
2. A field with a default that the server never sets is something that Weir lacks (network memory,
   buffered records): it has the value that Flink gives when it is absent.
3. In classes with ``omit_defaults``, a field at its default is left out of the JSON.
4. Unknown fields are accepted, in requests as in answers, as by Flink's own server and clients.
"""
