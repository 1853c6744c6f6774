"""``weir demo``: kills a running job again and again, and counts the rows of its tables.

``flights.py`` in this package is a link to ``examples/flights.py``, so that an installed Weir has
the example too.
"""

from weir.demo.run import run_demo

__all__ = ["run_demo"]
