"""What ``FileSource`` makes of each format, type and compression: the table in docs/FILES.md.

``opening.py`` opens a file, for both settings of ``on_error``. ``compression.py`` knows what may
lie around text. ``records.py`` cuts text into whole records and isolates bad ones; ``csv_rows.py``
and ``json_rows.py`` parse them, with ``json_keys.py`` for the keys of JSON and ``text_values.py``
for values that are text in both. ``columns.py`` reads Parquet and Arrow files. ``names.py`` relates
a file's names to the schema's, ``partitions.py`` those of its directories, and ``rows.py`` puts
columns together.

The modules are imported only where files are read, since Arrow takes a while to load.
"""
