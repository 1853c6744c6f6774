"""The demo's input: which files land, in what order, and what the tables must contain."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from weir.demo.landing import Landed, Landing, land
from weir.demo.reference import expected_tables


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Landing:
    """All flights and all weather, landed once."""
    return land(tmp_path_factory.mktemp("landing"))


@pytest.fixture(scope="module")
def expected(landing: Landing) -> dict[str, pa.Table]:
    """The expected tables, computed once."""
    return expected_tables(landing.directory)


def landed_files(landed: Landed) -> list[Path]:
    """One source's files in the order in which Spark reads them: by modification time."""
    return sorted(landed.path.iterdir(), key=lambda path: path.stat().st_mtime_ns)


@pytest.mark.parametrize(
    ("source", "rows", "number"), [("flights", 336_776, 40), ("weather", 26_115, 10)]
)
def test_every_row_lands_exactly_once_and_in_order_of_event_time(
    landing: Landing, source: str, rows: int, number: int
) -> None:
    """All rows land, no file has a temporary name, and none starts before an older one ends: no row
    is late."""
    landed: Landed = getattr(landing, source)
    files = landed_files(landed)
    assert (landed.rows, landed.files) == (rows, number)
    assert sum(pq.read_metadata(path).num_rows for path in files) == rows
    assert [path.name for path in files] == [f"part-{index:04d}.parquet" for index in range(number)]
    newest = ""
    for path in files:
        bounds = pc.min_max(pq.read_table(path, columns=["time_hour"])["time_hour"]).as_py()
        assert newest <= bounds["min"]
        newest = bounds["max"]


def test_each_file_has_a_modification_time_of_its_own(landing: Landing) -> None:
    """Spark orders files by modification time; ties would be ambiguous."""
    times = [path.stat().st_mtime for path in landed_files(landing.flights)]
    assert len(set(times)) == len(times)


def test_only_the_first_flights_land_if_fewer_are_requested(tmp_path: Path) -> None:
    """A small run uses the start of the year."""
    landing = land(tmp_path, files=4, flights=1_000)
    table = pq.read_table(landing.flights.path)
    assert (landing.flights.rows, table.num_rows, len(landed_files(landing.flights))) == (
        1_000,
        1_000,
        4,
    )
    assert pc.max(table["time_hour"]).as_py() < "2013-01-03"


def test_the_expected_tables_agree_with_figures_counted_by_hand(
    expected: dict[str, pa.Table],
) -> None:
    """8,255 flights were cancelled, the others count once in their carrier's day."""
    clean, delays = expected["flights_clean"], expected["carrier_delays"]
    assert clean.num_rows == 336_776 - 8_255
    assert pc.sum(delays["flights"]).as_py() == clean.num_rows
    assert pc.sum(delays["arr_delay_sum"]).as_py() == pc.sum(clean["arr_delay"]).as_py()
    assert pc.min(clean["event_time"]).as_py() == datetime(2013, 1, 1, 10, 15, tzinfo=UTC)


def test_a_carriers_day_is_added_up_from_its_own_flights(expected: dict[str, pa.Table]) -> None:
    """One window, recomputed row by row in plain Python."""
    start, end = datetime(2013, 7, 4, tzinfo=UTC), datetime(2013, 7, 5, tzinfo=UTC)
    flights = expected["flights_clean"].select(["event_time", "carrier", "arr_delay"])
    delays = [
        row["arr_delay"]
        for row in flights.filter(pc.equal(flights["carrier"], "B6")).to_pylist()
        if start <= row["event_time"] < end
    ]
    known = [delay for delay in delays if delay is not None]
    window = {"start": start, "end": end, "carrier": "B6", "flights": len(delays)}
    assert (
        window | {"arr_delay_sum": sum(known), "arr_delay_max": max(known)}
        in expected["carrier_delays"].to_pylist()
    )


def test_each_flight_has_the_weather_of_its_own_airport_and_hour(
    expected: dict[str, pa.Table],
) -> None:
    """One row per flight; those in 108 hours without observations have no weather; one is looked up
    by hand."""
    weather, clean = expected["flights_weather"], expected["flights_clean"]
    assert weather.num_rows == clean.num_rows
    unobserved = weather.filter(pc.is_null(weather["observed"]))
    assert unobserved.num_rows == 1_528
    assert pc.all(pc.is_null(unobserved["temp"])).as_py()
    rows = weather.filter(
        pc.equal(weather["event_time"], pa.scalar(datetime(2013, 1, 1, 10, 15, tzinfo=UTC)))
    )
    assert [
        (row["flight"], row["observed"], row["temp"], row["visib"]) for row in rows.to_pylist()
    ] == [(1545, datetime(2013, 1, 1, 10, tzinfo=UTC), 39.02, 10.0)]


def test_anomalies_are_the_flights_that_left_two_hours_late_or_more(
    expected: dict[str, pa.Table],
) -> None:
    """Counted in plain Python, with the latest flight of the year among them."""
    late = [
        row
        for row in expected["flights_clean"]
        .select(["flight", "dep_delay", "arr_delay"])
        .to_pylist()
        if row["dep_delay"] >= 120
    ]
    anomalies = expected["anomalies"].to_pylist()
    assert len(anomalies) == len(late) == 9_888
    latest = max(anomalies, key=lambda row: row["dep_delay"])
    assert (latest["flight"], latest["dep_delay"], latest["severity"], latest["made_up"]) == (
        51,
        1301,
        "extreme",
        29,
    )
    assert {row["severity"] for row in anomalies} == {"long", "severe", "extreme"}
    assert sum(row["made_up"] is None for row in anomalies) == sum(
        row["arr_delay"] is None for row in late
    )
