"""Rows on which a step raises, and rules that rows break: set aside, counted, sent to the driver.

::

    guard.py         a step's plan, built again so that rows that raise are set aside
    parts.py         expressions of plans, made and looked into
    wrapper.py       a user's Python function in Spark's workers
    udfs.py          UDFs that return a value or an error
    maps.py          mapInPandas and mapInArrow, with the rows on which they raise
    expected.py      the plan of weir.expect
    observation.py   what such plans send to the driver with a batch
    gathered.py      what came of it, as rows of the rejects steps
    messages.py      what Spark's expressions raised
"""
