"""Rows that are set aside are in one table or the other, once, whatever dies (docs/REJECTS.md)."""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark import cloudpickle
from tests.e2e import rejects_pipeline
from tests.e2e.rejects_pipeline import KEYS, rejecting
from tests.kit.live_job import RESTARTED, LiveJob, WatchedFiles, numbers, settings
from tests.kit.place import ROWS_PER_FILE, Place, files_rows, visible_files
from tests.kit.waiting import wait_until

from weir.core.status import JobStatus

PIPELINE = Path(rejects_pipeline.__file__)

pytestmark = pytest.mark.spark

# Spark's workers do not have this module.
cloudpickle.register_pickle_by_value(sys.modules[rejects_pipeline.__name__])  # type: ignore[no-untyped-call]

#: The step that sets numbers with this last digit aside, and what its error says.
BY_DIGIT = {
    3: ("divided", "DIVIDE_BY_ZERO"),
    4: ("pandas", "ValueError: a four"),
    5: ("counted", "ValueError: a five"),
    6: ("arrow", "ValueError: a six"),
    7: ("expected", "breaks 'no seven'"),
}


def assert_exact(place: Place, out: Path) -> None:
    """Check that each number is where it belongs, once, and that state has good numbers only."""
    ids = sorted(number for number, _ in place.rows().elements())
    good = [n for n in ids if n % 10 not in BY_DIGIT]
    rows = files_rows(out / "all")
    assert {number: key for number, key, _ in rows} == {n: n % KEYS for n in good}
    # The nth number of each key, as if no other had come.
    ns = Counter(n % KEYS for n in good)
    expected = Counter((key, n) for key in ns for n in range(1, ns[key] + 1))
    assert Counter((key, n) for _, key, n in rows.elements()) == expected
    bad = DeltaTable(str(out / "bad")).to_pyarrow_table().to_pylist()
    found = Counter((one["step"], json.loads(one["row"])["id"]) for one in bad)
    assert found == Counter((BY_DIGIT[n % 10][0], n) for n in ids if n % 10 in BY_DIGIT)
    times = dict(place.rows())
    for one in bad:
        number = json.loads(one["row"])["id"]
        assert BY_DIGIT[number % 10][1] in one["error"]
        if one["step"] in ("pandas", "arrow"):
            assert (number, one["event_time"]) in times


def test_each_row_is_in_one_table_or_the_other_over_a_failover(place: Place) -> None:
    """Steps of each kind in a chain that fails once: rows, rejects, and the state of an operator
    are exact, and what was set aside is counted."""
    place.land(3)
    out = place.directory / "out"
    errors = iter([None, OSError("the disk")])

    def fail_second() -> None:
        if (error := next(errors, None)) is not None:
            raise error

    last = WatchedFiles(out / "all", stage=fail_second)
    job = rejecting(numbers(place), str(out), last, bounded=True)
    with LiveJob(job, settings(place, RESTARTED, interval="300ms")) as live:
        result = live.result()
        assert result.status is JobStatus.FINISHED, result.failure
        view = live.gateway.view()
    assert_exact(place, out)
    counted = {(c.by, c.rule): c.rows for v in view.vertices for c in v.counted}
    each = 3 * ROWS_PER_FILE // 10
    expected = {
        **{(step, ""): each for step, _ in BY_DIGIT.values()},
        ("expected", "no seven"): each,
        ("expected", "below 50"): 3 * ROWS_PER_FILE - 50 - 3 * 7,
    }
    assert counted.keys() == expected.keys()
    # Rows that are processed again are counted again, but not in the checkpoints.
    assert all(counted[one] >= expected[one] for one in expected)
    checkpoints = [one for one in view.checkpoints.history if one.status == "COMPLETED"]
    by_checkpoint: Counter[tuple[str, str]] = Counter()
    for one in checkpoints:
        for task in one.tasks:
            by_checkpoint.update({(c.by, c.rule): c.rows for c in task.metrics.counted})
    assert by_checkpoint == expected


@pytest.mark.slow
@pytest.mark.kill
@pytest.mark.timeout(900)
def test_rows_are_exact_over_four_drivers_that_die(place: Place) -> None:
    """Each gets more input, and dies at a random moment after it has committed something."""
    draws = random.Random(60)
    out = place.directory / "out"
    for _ in range(4):
        place.land(5)
        before = len(visible_files(out / "all"))
        run = place.start(pipeline=PIPELINE, environment={"NUMBERS": "unbounded"})
        wait_until(lambda before=before: len(visible_files(out / "all")) > before, "a table grows")
        time.sleep(draws.uniform(0, 3))
        run.process.send_signal(signal.SIGKILL)
        assert run.wait() == -signal.SIGKILL, run.story()
    assert "has finished" in place.finish(pipeline=PIPELINE).output
    assert_exact(place, out)
