"""How the demo judges the tables after a kill: all have one checkpoint, and agree there."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake

from weir.demo.reference import FLIGHT, anomalies_of, carrier_delays
from weir.demo.verify import look

TIME = datetime(2013, 1, 1, 10, 15, tzinfo=UTC)
TABLES = ("flights_clean", "carrier_delays", "flights_weather", "anomalies")
TEXTS = ("carrier", "tailnum", "origin", "dest")


def flights(*delays: int) -> pa.Table:
    """Clean flights that departed this many minutes late."""
    numbers = {name: pa.array(delays, pa.int32()) for name in ("flight", "dep_delay", "arr_delay")}
    texts = {name: pa.array([name] * len(delays)) for name in TEXTS}
    times = pa.array([TIME] * len(delays), pa.timestamp("us", tz="UTC"))
    return pa.table({"event_time": times, **texts, **numbers})


def commit(path: Path, rows: pa.Table, checkpoint: int) -> None:
    """Append rows as the sink does, in a commit that names its job and checkpoint."""
    metadata = {"weir.job.id": "a" * 32, "weir.job.name": "flights", "weir.sink": path.name}
    metadata["weir.checkpoint.id"] = str(checkpoint)
    partitions = ["origin"] if path.name == "flights_clean" else None
    properties = CommitProperties(custom_metadata=metadata)
    write_deltalake(
        path, rows, mode="append", partition_by=partitions, commit_properties=properties
    )


def with_weather(clean: pa.Table) -> pa.Table:
    """The flights as the join writes them, without an observation."""
    return clean.select(FLIGHT).append_column("temp", pa.nulls(clean.num_rows, pa.float64()))


def commit_all(tmp_path: Path, clean: pa.Table, checkpoint: int, **others: pa.Table) -> None:
    """Commit a checkpoint to every table; ``others`` differ from what follows from the flights."""
    follows = {
        "anomalies": anomalies_of(clean),
        "carrier_delays": carrier_delays(clean),
        "flights_weather": with_weather(clean),
    }
    for name, rows in {"flights_clean": clean, **follows, **others}.items():
        commit(tmp_path / name, rows, checkpoint)


def test_before_all_tables_have_a_checkpoint_there_is_nothing_to_compare(tmp_path: Path) -> None:
    """A kill may come before the first rows are committed everywhere: that is not an error."""
    commit(tmp_path / "flights_clean", flights(5, 130), 1)
    cut = look(tmp_path, TABLES)
    assert (cut.text, cut.problem) == ("no checkpoint is visible in all tables yet", None)


def test_a_table_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    """Damage is not taken for a job that has only begun."""
    commit_all(tmp_path, flights(5, 130), 1)
    (tmp_path / "anomalies" / "_delta_log" / f"{0:020}.json").write_text("{}}")
    assert "cannot be read" in (look(tmp_path, TABLES).problem or "")


def test_tables_are_compared_at_their_newest_common_checkpoint(tmp_path: Path) -> None:
    """A commit that only one table has so far is ignored; the tables must agree at the cut."""
    commit_all(tmp_path, flights(5, 130), 1)
    commit(tmp_path / "flights_clean", flights(500), 2)
    cut = look(tmp_path, TABLES)
    counts = "flights_clean 2, carrier_delays 1, flights_weather 2, anomalies 1"
    assert (cut.text, cut.problem) == (f"all tables at checkpoint 1: {counts}", None)


def test_days_and_weather_may_come_after_the_flights(tmp_path: Path) -> None:
    """Windows and the outer join wait for the watermark."""
    none = flights()
    late = {"carrier_delays": carrier_delays(none), "flights_weather": with_weather(none)}
    commit_all(tmp_path, flights(5, 130), 1, **late)
    assert look(tmp_path, TABLES).problem is None


@pytest.mark.parametrize(
    ("name", "rows", "said"),
    [
        ("anomalies", anomalies_of(flights(130, 130)), "1 rows are missing and 1 too many"),
        ("carrier_delays", carrier_delays(flights(130)), "0 rows are missing and 1 too many"),
        ("flights_weather", with_weather(flights(5, 5)), "0 rows are missing and 2 too many"),
    ],
)
def test_a_table_that_does_not_follow_from_the_flights_is_a_problem(
    tmp_path: Path, name: str, rows: pa.Table, said: str
) -> None:
    """Whichever it is: missing, doubled and foreign rows count, and so do flights of a day."""
    commit_all(tmp_path, flights(130, 300), 1, **{name: rows})
    assert look(tmp_path, TABLES).problem == (
        f"The tables disagree at checkpoint 1: of {name}, {said}."
    )
