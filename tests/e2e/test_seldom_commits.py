"""A table that is committed at intervals, beside one that is committed at every checkpoint."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pytest
from tests.kit.live_job import LiveJob, numbers, settings
from tests.kit.place import ROWS_PER_FILE, Place, assert_same, delta_rows
from tests.kit.waiting import PATIENCE_S, wait_until

import weir
from weir.errors import StorageError

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


@pytest.mark.slow
def test_a_table_that_leaves_out_checkpoints_loses_nothing_and_agrees_with_the_others(
    place: Place,
) -> None:
    """Over an end without a stop, whose newest checkpoint it had left out, and a stop."""
    paths = {name: str(place.directory / "out" / name) for name in ("often", "seldom")}
    conf = settings(place, num_retained="2")

    def job() -> weir.Job:
        made = weir.Job("numbers")
        read = made.source("numbers", numbers(place))
        read.sink("often", weir.sinks.DeltaTable(paths["often"]))
        read.sink("seldom", weir.sinks.DeltaTable(paths["seldom"]), min_commit_interval="1 h")
        return made

    def checkpoint_with_rows(live: LiveJob) -> None:
        place.land(1)
        wait_until(
            lambda: live.checkpoint() and delta_rows(Path(paths["often"])) == place.rows(),
            "what landed is committed",
        )

    with LiveJob(job(), conf) as live:
        for _ in range(3):
            checkpoint_with_rows(live)
        seldom = delta_rows(Path(paths["seldom"]))
        assert 0 < seldom.total() < place.rows().total()
        cut = weir.read_consistent(paths)
        shown = {name: cut.table(name).to_pyarrow_table().num_rows for name in paths}
        assert shown["often"] == shown["seldom"] == seldom.total()
        with pytest.raises(StorageError, match="not retained any more"):
            cut.input_positions()
    # Nothing was committed at the end, but the newest checkpoint holds what was left out.
    assert delta_rows(Path(paths["seldom"])) == seldom
    with LiveJob(job(), conf) as live:
        live.wait_until_it_runs()
        assert_same(delta_rows(Path(paths["seldom"])), place.rows(), "what was left out")
        for _ in range(3):
            checkpoint_with_rows(live)
        assert delta_rows(Path(paths["seldom"])).total() < place.rows().total()
        live.gateway.stop_with_savepoint(None).result(PATIENCE_S)
        live.result()
    for name, path in paths.items():
        assert_same(delta_rows(Path(path)), place.rows(), name)
    # One file of 40 rows for each number in the log of Spark's file source.
    (offset,) = weir.read_consistent(paths).input_positions()["numbers"]
    assert (offset["logOffset"] + 1) * ROWS_PER_FILE == place.rows().total()
    versions = {name: deltalake.DeltaTable(path).version() for name, path in paths.items()}
    assert versions["seldom"] < versions["often"]
