"""What the tables of the flights example must hold, computed once, in one batch, by other means.

Nothing here is shared with the example: it reads the landing files with pyarrow, not with Spark, and adds up with
pyarrow's own aggregation. Two programs that agree on every row are unlikely to be wrong in the same way.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_UTC = pa.timestamp("us", tz="UTC")
_MICROS_PER_MINUTE = 60_000_000
_MICROS_PER_DAY = 24 * 60 * _MICROS_PER_MINUTE
_INTEGERS = ("flight", "sched_dep_time", "dep_time", "dep_delay", "arr_delay", "air_time", "distance")


def expected_tables(flights: Path) -> dict[str, pa.Table]:
    """The tables of the example by name, from the landing files in a directory."""
    clean = _flights_clean(pq.read_table(flights))
    return {"flights_clean": clean, "carrier_delays": _carrier_delays(clean)}


def _flights_clean(landed: pa.Table) -> pa.Table:
    flown = landed.filter(pc.is_valid(landed["dep_time"]))
    hour = pc.strptime(flown["time_hour"], format="%Y-%m-%dT%H:%M:%SZ", unit="us").cast(pa.int64())
    event_time = (
        pc.add(hour, pc.multiply(flown["minute"], _MICROS_PER_MINUTE)).cast(pa.timestamp("us")).cast(_UTC)
    )
    columns = {
        "event_time": event_time,
        **{name: flown[name] for name in ("carrier", "tailnum", "origin", "dest")},
        **{name: flown[name].cast(pa.int32()) for name in _INTEGERS},
    }
    return pa.table(columns)


def _carrier_delays(clean: pa.Table) -> pa.Table:
    micros = clean["event_time"].cast(pa.int64())
    start = pc.multiply(pc.divide(micros, _MICROS_PER_DAY), _MICROS_PER_DAY)
    grouped = (
        pa.table(
            {"start": start, "carrier": clean["carrier"], "arr_delay": clean["arr_delay"].cast(pa.int64())}
        )
        .group_by(["start", "carrier"])
        .aggregate([([], "count_all"), ("arr_delay", "sum"), ("arr_delay", "max")])
    )
    return pa.table(
        {
            "start": grouped["start"].cast(pa.timestamp("us")).cast(_UTC),
            "end": pc.add(grouped["start"], _MICROS_PER_DAY).cast(pa.timestamp("us")).cast(_UTC),
            "carrier": grouped["carrier"],
            "flights": grouped["count_all"],
            "arr_delay_sum": grouped["arr_delay_sum"],
            "arr_delay_max": grouped["arr_delay_max"].cast(pa.int32()),
        }
    )
