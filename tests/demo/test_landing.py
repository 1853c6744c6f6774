"""The demo's input: what lands, in which order, and what the tables must hold of it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from weir.demo.landing import Landing, land
from weir.demo.reference import expected_tables


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Landing:
    """All flights, landed once."""
    return land(tmp_path_factory.mktemp("landing"))


def landed_files(landing: Landing) -> list[Path]:
    """The flights' files in the order in which Spark takes them: by modification time."""
    return sorted(landing.flights.iterdir(), key=lambda path: path.stat().st_mtime_ns)


def test_every_flight_lands_exactly_once(landing: Landing) -> None:
    """All rows of the package are there, and no file is left under a temporary name."""
    files = landed_files(landing)
    assert landing.rows == 336_776
    assert sum(pq.read_metadata(path).num_rows for path in files) == 336_776
    assert [path.name for path in files] == [f"part-{number:04d}.parquet" for number in range(40)]


def test_files_land_in_order_of_event_time(landing: Landing) -> None:
    """No file begins before the end of an older one, so that no row is late whatever its batch."""
    newest = ""
    for path in landed_files(landing):
        table = pq.read_table(path, columns=["time_hour"])
        bounds = pc.min_max(table["time_hour"]).as_py()
        assert newest <= bounds["min"]
        newest = bounds["max"]


def test_each_file_has_a_modification_time_of_its_own(landing: Landing) -> None:
    """Spark orders files by modification time; a tie would leave their order open."""
    times = [path.stat().st_mtime for path in landed_files(landing)]
    assert len(set(times)) == len(times)


def test_only_the_first_flights_land_if_fewer_are_asked_for(tmp_path: Path) -> None:
    """A small run takes the beginning of the year."""
    landing = land(tmp_path, files=4, flights=1_000)
    table = pq.read_table(landing.flights)
    assert (landing.rows, table.num_rows, len(landed_files(landing))) == (1_000, 1_000, 4)
    assert pc.max(table["time_hour"]).as_py() < "2013-01-03"


def test_the_expected_tables_agree_with_figures_counted_by_hand(landing: Landing) -> None:
    """8,255 flights were cancelled, the others count once in their carrier's day."""
    expected = expected_tables(landing.flights)
    clean, delays = expected["flights_clean"], expected["carrier_delays"]
    assert clean.num_rows == 336_776 - 8_255
    assert pc.sum(delays["flights"]).as_py() == clean.num_rows
    assert pc.sum(delays["arr_delay_sum"]).as_py() == pc.sum(clean["arr_delay"]).as_py()
    assert pc.min(clean["event_time"]).as_py() == datetime(2013, 1, 1, 10, 15, tzinfo=UTC)


def test_a_carriers_day_is_added_up_from_its_own_flights(landing: Landing) -> None:
    """One window, recomputed row by row in plain Python."""
    expected = expected_tables(landing.flights)
    start, end = datetime(2013, 7, 4, tzinfo=UTC), datetime(2013, 7, 5, tzinfo=UTC)
    delays = [
        row["arr_delay"]
        for row in expected["flights_clean"].select(["event_time", "carrier", "arr_delay"]).to_pylist()
        if row["carrier"] == "B6" and start <= row["event_time"] < end
    ]
    known = [delay for delay in delays if delay is not None]
    window = {"start": start, "end": end, "carrier": "B6", "flights": len(delays)}
    assert (
        window | {"arr_delay_sum": sum(known), "arr_delay_max": max(known)}
        in expected["carrier_delays"].to_pylist()
    )
