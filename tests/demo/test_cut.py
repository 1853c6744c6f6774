"""How the demo judges the tables after a kill: all have one checkpoint, and agree there."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, write_deltalake

from weir.demo.reference import anomalies_of
from weir.demo.verify import look

TIME = datetime(2013, 1, 1, 10, 15, tzinfo=UTC)
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


def test_before_all_tables_have_a_checkpoint_there_is_nothing_to_compare(tmp_path: Path) -> None:
    """A kill may come before the first rows are committed everywhere: that is not an error."""
    commit(tmp_path / "flights_clean", flights(5, 130), 1)
    cut = look(tmp_path, ["flights_clean", "anomalies"])
    assert (cut.text, cut.problem) == ("no checkpoint is visible in all tables yet", None)


def test_tables_are_compared_at_their_newest_common_checkpoint(tmp_path: Path) -> None:
    """A commit that only one table has so far is ignored; the tables must agree at the cut."""
    commit(tmp_path / "flights_clean", flights(5, 130), 1)
    commit(tmp_path / "anomalies", anomalies_of(flights(5, 130)), 1)
    commit(tmp_path / "flights_clean", flights(500), 2)
    cut = look(tmp_path, ["flights_clean", "anomalies"])
    assert (cut.text, cut.problem) == (
        "all tables at checkpoint 1: flights_clean 2, anomalies 1",
        None,
    )


def test_an_anomaly_that_is_missing_or_twice_at_the_cut_is_a_problem(tmp_path: Path) -> None:
    """The judge counts in both directions."""
    commit(tmp_path / "flights_clean", flights(130, 300), 1)
    commit(tmp_path / "anomalies", anomalies_of(flights(130, 130)), 1)
    problem = look(tmp_path, ["flights_clean", "anomalies"]).problem
    assert problem is not None
    assert "1 are missing, 1 are too many" in problem
