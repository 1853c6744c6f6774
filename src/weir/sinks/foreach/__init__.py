"""``Foreach`` and ``ForeachEpoch``: the user's own functions as sinks."""
