"""The life of a Python operator on real Spark, up to its end (MISSION B6, B7, E; PROTOCOL P6, P9).

An operator writes what is called into a file of its subtask, and commits in two phases: it stages
rows in a file, names the file in its state when a snapshot is taken, and renames it once it hears
that the checkpoint is complete.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from tests.e2e.test_draining import Tally
from tests.kit.checkered import checkered
from tests.kit.live_job import RESTARTED, LiveJob, numbers, settings
from tests.kit.place import ROWS_PER_FILE, Place, files_rows
from tests.kit.waiting import wait_until

import weir
from weir.core.status import JobStatus
from weir.errors import JobError
from weir.operators import ListCheckpointed, Operator, OperatorContext, SnapshotContext
from weir.operators.state.store import StateStore

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(300)]

# Spark's workers do not have this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class Diary(Operator):
    """Writes down its calls, in a file per subtask."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def _note(self, call: str, number: int | None = None) -> None:
        self._directory.mkdir(exist_ok=True)
        with (self._directory / str(self.context.subtask)).open("a") as file:
            print(call if number is None else f"{call} {number}", file=file)

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._note("open")

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        self._note("records")
        return [batch]

    def end_input(self) -> None:
        self._note("end_input")

    def finish(self) -> None:
        self._note("finish")

    def snapshot_state(self, context: SnapshotContext) -> None:
        assert context.timestamp_ms > 1_500_000_000_000
        self._note("snapshot", context.checkpoint_id)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._note("complete", checkpoint_id)

    def close(self) -> None:
        self._note("close")


def diary_job(place: Place, operator: Operator, *, bounded: bool, parallelism: int) -> weir.Job:
    job = weir.Job("diary")
    stream = job.source("numbers", numbers(place), bounded=bounded)
    stream = stream.process("diary", operator, parallelism=parallelism)
    stream.sink("out", weir.sinks.Files(str(place.directory / "out")))
    return job


def written(place: Place, subtask: int) -> list[str]:
    """The calls of a subtask, without those of processes that others took it over from."""
    calls = (place.directory / "diary" / str(subtask)).read_text().splitlines()
    shown = [call for call in calls if call not in ("open", "close", "records")]
    return [*shown, "close"] if calls[-1] == "close" else shown


@pytest.mark.parametrize("parallelism", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_at_the_end_of_the_input_operators_finish_then_commit_and_are_closed_last(
    place: Place, parallelism: int
) -> None:
    """E2, E3, E5: the final checkpoint lies between finish and close, and is heard of."""
    place.land(2)
    job = diary_job(place, Diary(place.directory / "diary"), bounded=True, parallelism=parallelism)
    with LiveJob(job, settings(place, interval="1 d")) as live:
        assert live.result().status is JobStatus.FINISHED
    for subtask in range(parallelism):
        assert written(place, subtask)[-5:] == [
            "end_input",
            "finish",
            "snapshot 1",
            "complete 1",
            "close",
        ]


def test_an_operator_ends_beside_a_sink_that_stages_something_at_the_end(place: Place) -> None:
    """E2: what the sink stages in ``finish`` has a position of its own, after the last batch."""
    place.land(2)
    job, tally = weir.Job("tally"), Tally()
    stream = job.source("numbers", numbers(place), bounded=True)
    diary = stream.process("diary", Diary(place.directory / "diary"), parallelism=1)
    diary.sink("tally", tally)
    with LiveJob(job, settings(place, interval="1 d")) as live:
        assert live.result().status is JobStatus.FINISHED
    assert tally.committed == [place.rows().total()]
    assert written(place, 0)[-3:] == ["snapshot 1", "complete 1", "close"]


@pytest.mark.parametrize("drain", [True, False])
def test_a_stop_is_heard_of_before_operators_are_closed(place: Place, drain: bool) -> None:
    """E4: the savepoint of a stop; only a drain finishes the operators (E2)."""
    place.land(1)
    job = diary_job(place, Diary(place.directory / "diary"), bounded=False, parallelism=2)
    with LiveJob(job, settings(place)) as live:
        live.wait_for_records(ROWS_PER_FILE)
        live.checkpoint()
        live.gateway.stop_with_savepoint(None, drain=drain).result()
        assert live.result().status is JobStatus.FINISHED
    ending = ["end_input", "finish"] if drain else []
    for subtask in range(2):
        calls = written(place, subtask)
        assert calls.count("snapshot 1") == calls.count("complete 1") == 1
        # Without a batch in between, the first checkpoint is heard of at the end, too.
        calls.remove("complete 1")
        assert calls[-3 - len(ending) :] == [*ending, "snapshot 2", "complete 2", "close"]


def test_a_cancelled_job_closes_its_operators(place: Place) -> None:
    """Without finishing them."""
    place.land(1)
    job = diary_job(place, Diary(place.directory / "diary"), bounded=False, parallelism=1)
    with LiveJob(job, settings(place)) as live:
        live.wait_for_records(ROWS_PER_FILE)
        live.cancel()
    assert written(place, 0) == ["close"]


def test_a_resting_operator_hears_of_a_checkpoint_without_waiting_for_records(
    place: Place,
) -> None:
    """What it has pre-committed is committed although no input comes (P2)."""
    place.land(1)
    job = diary_job(place, Diary(place.directory / "diary"), bounded=False, parallelism=1)
    with LiveJob(job, settings(place)) as live:
        live.wait_for_records(ROWS_PER_FILE)
        number = live.checkpoint().checkpoint_id
        wait_until(lambda: f"complete {number}" in written(place, 0), "the operator hears of it")


class Failing(Operator):
    """Cannot take its snapshot while the mark exists; counts its rows."""

    output_schema = "rows long"

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def initialize_state(self, state: StateStore) -> None:
        self._rows = state.list_state("rows")

    def process_batch(self, batch: pa.RecordBatch) -> None:
        self._rows.update([sum(self._rows.get()) + batch.num_rows])

    def finish(self) -> list[pa.RecordBatch]:
        return [pa.RecordBatch.from_pydict({"rows": pa.array(self._rows.get(), pa.int64())})]

    def snapshot_state(self, context: SnapshotContext) -> None:
        if self._mark.exists():
            self._rows.clear()
            raise OSError("no space")


class FailingList(ListCheckpointed, Failing):
    """The same, with an element that cannot be stored."""

    def snapshot_state(self, context: SnapshotContext) -> None:
        return

    def snapshot_list(self, context: SnapshotContext | None) -> list[Any]:
        return [object()] if context is not None and self._mark.exists() else ["kept"]

    def restore_list(self, elements: list[Any]) -> None:
        assert elements in ([], ["kept"])


@pytest.mark.parametrize(
    ("operator", "why"),
    [
        (Failing, "OSError: no space"),
        pytest.param(FailingList, "cannot be stored, since", marks=pytest.mark.slow),
    ],
)
def test_a_snapshot_that_an_operator_fails_to_take_is_declined_and_the_job_runs_on(
    place: Place, operator: Callable[[Path], Operator], why: str
) -> None:
    """P9, B6, B7: its name and reason are told, and nothing of what it did to its state stays."""
    mark = place.directory / "mark"
    job = diary_job(place, operator(mark), bounded=False, parallelism=1)
    conf = settings(place, tolerable_failed_checkpoints="1")
    place.land(1)
    with LiveJob(job, conf) as live:
        live.wait_for_records(ROWS_PER_FILE)
        mark.touch()
        with pytest.raises(
            JobError, match=rf"Could not complete snapshot 1 for operator diary\..*{why}"
        ):
            live.checkpoint()
        mark.unlink()
        live.checkpoint()
        place.land(1)
        live.wait_for_records(2 * ROWS_PER_FILE)
        live.gateway.stop_with_savepoint(None, drain=True).result()
        assert (live.result().status, live.gateway.view().attempt) == (JobStatus.FINISHED, 1)
    assert files_rows(place.directory / "out") == Counter([(2 * ROWS_PER_FILE,)])


class Forgetful(Operator):
    """Keeps a count in an attribute."""

    def __init__(self) -> None:
        self._rows = 0

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        self._rows += batch.num_rows
        return [batch]


def test_an_attribute_that_another_process_would_not_have_fails_the_job_at_once(
    place: Place,
) -> None:
    """The next batch may run there: the count would be lost, sometimes."""
    place.land(1)
    job = diary_job(place, Forgetful(), bounded=False, parallelism=1)
    with LiveJob(job, settings(place, RESTARTED)) as live:
        result = live.result()
        attempt = live.gateway.view().attempt
    assert (result.status, attempt) == (JobStatus.FAILED, 1)
    assert "Operator 'diary' changed its attribute '_rows' while it ran" in (result.failure or "")


class TwoPhase(Operator):
    """Writes rows exactly once by itself: a file per batch, committed with its checkpoint.

    Fails once in the call that the mark names.
    """

    output_schema = "id long"

    def __init__(self, directory: Path, mark: Path) -> None:
        self._directory = directory
        self._mark = mark

    def initialize_state(self, state: StateStore) -> None:
        #: Files since the last snapshot, and (checkpoint, file) of those before it.
        self._staged = state.list_state("staged")
        self._pending = state.list_state("pending")
        # Files of the restored checkpoint: it is complete.
        for number, name in self._pending.get():
            if number <= (state.restored_checkpoint_id or 0):
                self._commit(name)

    def process_batch(self, batch: pa.RecordBatch) -> None:
        self._perhaps_fail("records")
        self._directory.mkdir(exist_ok=True)
        number = len(list(self._directory.iterdir()))
        name = f"{self.context.subtask}-{number}-{id(batch)}"
        text = "".join(f"{row}\n" for row in batch.column("id").to_pylist())
        (self._directory / f"staged-{name}").write_text(text)
        self._staged.add(name)

    def snapshot_state(self, context: SnapshotContext) -> None:
        self._pending.update(
            [*self._pending.get(), *([context.checkpoint_id, one] for one in self._staged.get())]
        )
        self._staged.clear()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._perhaps_fail("complete")
        for number, name in self._pending.get():
            if number <= checkpoint_id:
                self._commit(name)
        self._pending.update(one for one in self._pending.get() if one[0] > checkpoint_id)

    def _perhaps_fail(self, call: str) -> None:
        if self._mark.exists() and self._mark.read_text() == call:
            self._mark.unlink()
            raise RuntimeError("fails once")

    def _commit(self, name: str) -> None:
        staged = self._directory / f"staged-{name}"
        if staged.exists():
            staged.rename(self._directory / f"committed-{name}")


def test_an_operator_commits_in_two_phases_over_failures(place: Place) -> None:
    """B7, E3: each row is in exactly one committed file, the last ones included."""
    mark, directory = place.directory / "mark", place.directory / "files"
    job = diary_job(place, TwoPhase(directory, mark), bounded=False, parallelism=2)
    with LiveJob(job, settings(place, RESTARTED, interval="200ms")) as live:
        for _ in range(2):
            place.land(1)
            live.wait_for_records(1)
            mark.write_text("records")
            place.land(1)
            wait_until(lambda: not mark.exists(), "the operator fails")
            wait_until(lambda: _rows_of(directory) == _landed(place), "every row is committed")
        place.land(1)
        wait_until(
            lambda: _rows_of(directory, "*").keys() == _landed(place).keys(), "every row is read"
        )
        live.gateway.stop_with_savepoint(None, drain=True).result()
        assert live.result().status is JobStatus.FINISHED
    assert _rows_of(directory) == _landed(place)


def test_a_failure_after_the_final_checkpoint_leaves_no_row_uncommitted(place: Place) -> None:
    """E5, P35: the operators have finished and are not started again, but hear of it again."""
    mark, directory = place.directory / "mark", place.directory / "files"
    job = diary_job(place, TwoPhase(directory, mark), bounded=True, parallelism=2)
    place.land(2)
    mark.write_text("complete")
    with LiveJob(job, settings(place, RESTARTED, interval="1 d")) as live:
        assert live.result().status is JobStatus.FINISHED
        assert (live.gateway.view().attempt, live.restored_ids) == (2, [1])
    assert _rows_of(directory) == _landed(place)


def _landed(place: Place) -> Counter[int]:
    return Counter(row[0] for row in place.rows().elements())


def _rows_of(directory: Path, which: str = "committed-*") -> Counter[int]:
    """The rows of the committed files, or of others too."""
    files = directory.glob(which)
    return Counter(int(line) for file in files for line in file.read_text().splitlines())


@pytest.mark.parametrize(("behind_channel", "bounded"), checkered([True, False], [True, False]))
def test_operators_finish_though_their_input_never_had_a_row(
    place: Place, bounded: bool, behind_channel: bool
) -> None:
    """E2: at the end of the input, and of a drain; no batch has run before."""
    (place.directory / "in").mkdir(exist_ok=True)
    job = weir.Job("diary")
    diary = job.source("numbers", numbers(place), bounded=bounded).process(
        "diary", Diary(place.directory / "diary"), parallelism=2
    )
    if behind_channel:
        diary.start_new_chain()
    diary.sink("out", weir.sinks.Files(str(place.directory / "out")))
    with LiveJob(job, settings(place, interval="1 d")) as live:
        if not bounded:
            live.wait_until_it_runs()
            live.gateway.stop_with_savepoint(None, drain=True).result()
        assert live.result().status is JobStatus.FINISHED
    for subtask in range(2):
        calls = ["end_input", "finish", "snapshot 1", "complete 1", "close"]
        assert written(place, subtask) == calls
