"""The expected tables of the flights example, computed once, in one batch, without Spark.

This module shares no code with the example: it reads the landing files with pyarrow, not with
Spark, aggregates with pyarrow, and joins on the hour as the files spell it, not on timestamps. Two
programs that agree on every row are unlikely to be wrong in the same way.

**The rule change** (``RuleChange``) changes what counts as an anomaly while the job runs and is
killed, as a person would with ``weir send``. The change is sent once a fraction of the job is
committed, and sent again in the next life if the driver dies before it has answered. Setting a rule
twice has the effect of setting it once; once the driver has answered, no kill can undo the change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from weir.errors import WeirError
from weir.rest.client import connect

#: The change is sent once this fraction of the job is committed.
_SENT_FROM = 0.25
_POLL_S = 0.2
OPERATOR = "anomalies_by_rule"
#: The rule, its value in the example, and its value after the change.
RULE, BEFORE_MINUTES, AFTER_MINUTES = "minutes", 120, 180


class RuleChange:
    """A thread that sends the change. Use as a context manager."""

    def __init__(
        self,
        *,
        address: Callable[[], str | None],
        done: Callable[[], float],
        report: Callable[[str], None],
    ) -> None:
        """Create the thread.

        ``address`` returns the address of the live driver, ``done`` the committed fraction of the
        job.
        """
        self._address = address
        self._done = done
        self._report = report
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="weir-demo-rule", daemon=True)
        #: Whether the driver has answered.
        self.answered = False

    def __enter__(self) -> RuleChange:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_POLL_S):
            address = self._address()
            if address is None or self._done() < _SENT_FROM:
                continue
            try:
                with connect("flights", address) as client:
                    answer = client.send(OPERATOR, {"set": {RULE: AFTER_MINUTES}})
            except WeirError:
                # That driver has died, or has not started yet.
                continue
            self.answered = True
            self._report(
                f"weir send flights {OPERATOR}: a flight is an anomaly from {AFTER_MINUTES} minutes"
                f" on; {answer}"
            )
            return


_UTC = pa.timestamp("us", tz="UTC")
_MICROS_PER_MINUTE = 60_000_000
_MICROS_PER_DAY = 24 * 60 * _MICROS_PER_MINUTE
_INTEGERS = (
    "flight",
    "sched_dep_time",
    "dep_time",
    "dep_delay",
    "arr_delay",
    "air_time",
    "distance",
)


#: The columns of ``flights_weather`` that are the flight's.
FLIGHT = ["event_time", "carrier", "flight", "origin", "dest", "dep_delay"]
#: The weather columns that the example uses.
_OBSERVATIONS = ("temp", "wind_speed", "wind_gust", "precip", "visib")
#: (minutes, severity): a flight that leaves this many minutes late is an anomaly of that severity.
_SEVERITIES = ((120, "long"), (240, "severe"), (480, "extreme"))


def expected_tables(landing: Path) -> dict[str, pa.Table]:
    """The expected tables of the example by name.

    They are computed from the landing files in ``landing/flights`` and ``landing/weather``.
    """
    landed = pq.read_table(landing / "flights")
    flown = landed.filter(pc.is_valid(landed["dep_time"]))
    clean = _flights_clean(flown)
    return {
        "flights_clean": clean,
        "carrier_delays": carrier_delays(clean),
        "flights_weather": _flights_weather(
            clean, flown["time_hour"], pq.read_table(landing / "weather")
        ),
        "anomalies": anomalies_of(clean),
    }


def _flights_clean(flown: pa.Table) -> pa.Table:
    micros = pc.add(_micros(flown["time_hour"]), pc.multiply(flown["minute"], _MICROS_PER_MINUTE))
    columns = {
        "event_time": micros.cast(pa.timestamp("us")).cast(_UTC),
        **{name: flown[name] for name in ("carrier", "tailnum", "origin", "dest")},
        **{name: flown[name].cast(pa.int32()) for name in _INTEGERS},
    }
    return pa.table(columns)


def carrier_delays(clean: pa.Table) -> pa.Table:
    """The delays of all days of some rows of ``flights_clean``, by carrier."""
    micros = clean["event_time"].cast(pa.int64())
    start = pc.multiply(pc.divide(micros, _MICROS_PER_DAY), _MICROS_PER_DAY)
    grouped = (
        pa.table(
            {
                "start": start,
                "carrier": clean["carrier"],
                "arr_delay": clean["arr_delay"].cast(pa.int64()),
            }
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


def _flights_weather(clean: pa.Table, time_hour: pa.ChunkedArray, weather: pa.Table) -> pa.Table:
    observations = weather.select(["origin", "time_hour", *_OBSERVATIONS]).append_column(
        "observed", _micros(weather["time_hour"]).cast(pa.timestamp("us")).cast(_UTC)
    )
    flights = clean.select(FLIGHT)
    joined = flights.append_column("time_hour", time_hour).join(
        observations, ["origin", "time_hour"], join_type="left outer"
    )
    return joined.drop_columns(["time_hour"])


def anomalies_of(clean: pa.Table, found: pa.Table | None = None) -> pa.Table:
    """The anomalies among some rows of ``flights_clean``.

    The rule may change while the job runs; ``found`` are the anomalies of such a run. Flights are
    read in order of departure, so all flights up to the last anomaly found by the first rule were
    judged by that rule, and all later flights by the changed rule.
    """
    limits = _limits(clean, found)
    chosen = pc.greater_equal(clean["dep_delay"], limits)
    late, limits = clean.filter(chosen), limits.filter(chosen)
    columns = [
        "event_time",
        "carrier",
        "flight",
        "tailnum",
        "origin",
        "dest",
        "dep_delay",
        "arr_delay",
    ]
    severity = [
        [name for minutes, name in _SEVERITIES if delay >= minutes][-1]
        for delay in late["dep_delay"].to_pylist()
    ]
    made_up = pc.subtract(late["dep_delay"], late["arr_delay"])
    return (
        late.select(columns)
        .append_column("severity", pa.array(severity, pa.string()))
        .append_column("made_up", made_up)
        .append_column("limit_minutes", limits)
    )


def _limits(clean: pa.Table, found: pa.Table | None) -> pa.ChunkedArray:
    """For each flight, the delay in minutes from which it was an anomaly."""
    first, other = (pa.scalar(minutes, pa.int32()) for minutes in (BEFORE_MINUTES, AFTER_MINUTES))
    everywhere = pa.chunked_array([pa.repeat(first, clean.num_rows)])
    if found is None or other not in found["limit_minutes"].unique():
        return everywhere
    by_first = found.filter(pc.equal(found["limit_minutes"], first))
    last = pc.max(by_first["event_time"]).cast(clean["event_time"].type)
    judged_by_first = pc.less_equal(clean["event_time"], last)
    return pc.if_else(pc.fill_null(judged_by_first, False), first, other)


def _micros(time_hour: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.strptime(time_hour, format="%Y-%m-%dT%H:%M:%SZ", unit="us").cast(pa.int64())
