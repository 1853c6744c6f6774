"""The demonstration behind ``weir demo``: kills a running job again and again and counts what is in
its tables.

``flights.py`` in this package is the example's own file (a link to ``examples/flights.py``), so
that an installed Weir has it too.
"""

from weir.demo.run import run_demo

__all__ = ["run_demo"]
