"""Python operators with coordinators on real Spark (MISSION B7, C; PROTOCOL P2, P6, P41).

Scenario 38 of Flink's tests: two coordinators at very different paces send the numbers 0, 1, 2 ...
to every subtask of their operators, while an operator fails in the middle third and checkpoints are
taken all the time. At the end of the input each subtask emits what it got.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import LongType, StructField, StructType
from tests.kit.clock import LaterClock
from tests.kit.live_job import RESTARTED, LiveJob, numbers, retained, settings
from tests.kit.place import ROWS_PER_FILE, Place, delta_rows, files_rows
from tests.kit.waiting import wait_until

import weir
from weir.coordinators import BroadcastRules, OperatorCoordinator
from weir.core.job.restart import GIVEN_UP_FROM
from weir.core.status import JobStatus
from weir.core.types import Payload
from weir.errors import RestError, WeirError
from weir.operators import ListCheckpointed, Operator, RulesOperator, SnapshotContext
from weir.operators.state.store import StateStore
from weir.rest.client import connect
from weir.rest.flink import job_answers

pytestmark = pytest.mark.spark

# Spark's workers do not have this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

SCHEMA = "operator string, subtask int, at long, number long"


class Numbers(OperatorCoordinator):
    """Sends each subtask the numbers from 0 on and counts those that come back."""

    def __init__(self, count: int, pace_ms: int) -> None:
        self._count = count
        self._pace_ms = pace_ms
        self._sent: list[int] = []
        self.back: Counter[int] = Counter()
        self.problems: list[str] = []

    def reset_to_checkpoint(self, checkpoint_id: int | None, state: Payload | None) -> None:
        self._sent = (
            [0] * self.context.current_parallelism if state is None else list(state["sent"])
        )
        self.back = Counter() if state is None else Counter(dict(enumerate(state["back"])))
        self.context.schedule(self._pace_ms, self._send)

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Payload) -> None:
        if event["back"] != self.back[subtask]:
            self.problems.append(
                f"subtask {subtask} sends {event['back']} back after {self.back[subtask]}"
            )
        self.back[subtask] += 1

    def checkpoint_coordinator(self, checkpoint_id: int) -> Payload:
        return {
            "sent": self._sent,
            "back": [self.back[subtask] for subtask in range(len(self._sent))],
        }

    @property
    def is_done(self) -> bool:
        """Whether every number has come back."""
        return len(self._sent) > 0 and all(
            self.back[one] == self._count for one in range(len(self._sent))
        )

    def _send(self) -> None:
        for subtask, number in enumerate(self._sent):
            if number < self._count:
                self.context.send_event(subtask, {"number": number})
                self._sent[subtask] = number + 1
        if min(self._sent) < self._count:
            self.context.schedule(self._pace_ms, self._send)


class Keeper(Operator):
    """Keeps its numbers, sends them back, and emits all at the end. Fails once at some number."""

    output_schema = SCHEMA

    def __init__(self, fails_at: int | None = None, mark: Path | None = None) -> None:
        self._fails_at = fails_at
        self._mark = mark

    def initialize_state(self, state: StateStore) -> None:
        self._got = state.list_state("got")

    def handle_operator_event(self, event: Payload) -> None:
        if event["number"] == self._fails_at and self._mark is not None and not self._mark.exists():
            self._mark.touch()
            raise RuntimeError("fails once")
        self._got.add(event["number"])
        self.context.send_event_to_coordinator({"back": event["number"]})

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        return [batch] if "operator" in batch.schema.names else []

    def finish(self) -> list[pa.RecordBatch]:
        rows = [
            {
                "operator": self.context.operator_id,
                "subtask": self.context.subtask,
                "at": at,
                "number": number,
            }
            for at, number in enumerate(self._got.get())
        ]
        schema = pa.schema(
            [
                ("operator", pa.string()),
                ("subtask", pa.int32()),
                ("at", pa.int64()),
                ("number", pa.int64()),
            ]
        )
        return pa.Table.from_pylist(rows, schema).to_batches()


#: (operator, subtask, place in the order, number): the expected result of scenario 38.
EVERY_NUMBER = Counter(
    (operator, subtask, at, at)
    for operator, subtasks, count in (("fast", 2, 200), ("slow", 3, 5))
    for subtask in range(subtasks)
    for at in range(count)
)


def run_scenario(place: Place, seed: int) -> Counter[Any]:
    """Run scenario 38 with a failure in the middle third; return what each subtask received."""
    fast, slow = Numbers(200, 1), Numbers(5, 200)
    fails_at = random.Random(seed).randrange(67, 134)
    place.land(2)
    job = weir.Job("numbers")
    stream = job.source("numbers", numbers(place))
    stream = stream.process(
        "fast", Keeper(fails_at, place.directory / "failed"), coordinator=fast, parallelism=2
    )
    stream = stream.process("slow", Keeper(), coordinator=slow, parallelism=3)
    stream.sink("got", weir.sinks.DeltaTable(str(place.directory / "out")))
    conf = settings(place, RESTARTED, interval="300ms")
    with LiveJob(job, conf) as live:
        wait_until(lambda: fast.is_done and slow.is_done, "every number has come back")
        live.gateway.stop_with_savepoint(None, drain=True).result()
        assert live.result().status is JobStatus.FINISHED
    assert (place.directory / "failed").exists()
    assert fast.problems == slow.problems == []
    return delta_rows(place.directory / "out")


@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(300)
def test_every_subtask_gets_every_number_once_and_in_order_though_an_operator_fails(
    place: Place,
) -> None:
    """38, with one seed: all events of both directions, through a failure."""
    assert run_scenario(place, 0) == EVERY_NUMBER


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(20))
def test_every_subtask_gets_every_number_once_and_in_order_wherever_an_operator_fails(
    place: Place, seed: int
) -> None:
    """38, with twenty seeds."""
    assert run_scenario(place, seed) == EVERY_NUMBER


class Strict(Operator):
    """Raises at the second row of the second file."""

    output_schema = "id long, ts timestamp"

    def __init__(self, error: Exception) -> None:
        self._error = error

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        if ROWS_PER_FILE + 1 in batch.column("id").to_pylist():
            raise self._error
        return [batch]


def strict_job(place: Place, error: Exception) -> weir.Job:
    """Two files of numbers, the second of which fails."""
    place.land(2)
    job = weir.Job("strict")
    stream = job.source("numbers", numbers(place)).process("strict", Strict(error), parallelism=1)
    stream.sink("out", weir.sinks.DeltaTable(str(place.directory / "out")))
    return job


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_an_operator_that_keeps_failing_is_reported_once_each_time_and_given_up_in_the_end(
    place: Place,
) -> None:
    """The report has the line, subtask, records and batch, and REST has the worker's traceback."""
    conf = settings(
        place,
        {
            **RESTARTED,
            "restart-strategy.fixed-delay.attempts": "100",
            "weir.restart.give-up-after": "1 s",
        },
        interval="1 d",
    )
    with LiveJob(strict_job(place, KeyError("JP")), conf) as live:
        result = live.result()
        view = live.gateway.view()
    told = [note for note in live.notes if "KeyError" in note]
    assert (result.status, view.attempt, len(told)) == (
        JobStatus.FAILED,
        GIVEN_UP_FROM,
        GIVEN_UP_FROM,
    )
    assert told[0].startswith(
        f"FAILING: Task 'strict' failed: KeyError: 'JP' (in process_batch, {__file__}, line "
    )
    records = f"its record batch 0 (rows 0 to {ROWS_PER_FILE - 1})"
    assert f"; subtask 0 of 'strict', {records}; batch 1" in told[0]
    assert "failure 3 with the same cause" in told[2]
    assert result.failure == told[-1].removeprefix("FAILING: ")
    newest = job_answers.exceptions(view, 1).exception_history.entries[0]
    assert newest.task_name == "strict"
    assert "in process_batch\n    raise self._error\nKeyError: 'JP'\n" in newest.stacktrace
    assert "\tat org.apache.spark." in newest.stacktrace


@pytest.mark.usefixtures("spark")
def test_a_module_that_the_workers_do_not_have_fails_the_job_at_once(place: Place) -> None:
    """No later attempt could find it."""
    job = strict_job(place, ModuleNotFoundError("No module named 'geo'"))
    with LiveJob(job, settings(place, RESTARTED)) as live:
        result = live.result()
        attempt = live.gateway.view().attempt
    assert (result.status, attempt) == (JobStatus.FAILED, 1)
    says = "ModuleNotFoundError: No module named 'geo' in Spark's workers: install it there"
    assert says in (result.failure or "")
    assert "spark.submit.pyFiles (in process_batch, " in (result.failure or "")


class Counts(Operator):
    """The running count per key, for every row, and the rows that each key group has had."""

    output_schema = StructType([StructField("id", LongType()), StructField("n", LongType())])

    def initialize_state(self, state: StateStore) -> None:
        self._counts = state.keyed_state("counts", pa.int64(), 0)
        self._rows = state.raw_keyed_state("rows")

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        keys = batch.column("key")
        frame = keys.to_pandas().to_frame("key")
        unique = keys.unique()
        before = dict(zip(unique.to_pylist(), self._counts.get(unique).to_pylist(), strict=True))
        numbers = frame.groupby("key").cumcount() + 1 + frame["key"].map(before)
        counted = frame["key"].value_counts()
        after = [before[key] + int(counted[key]) for key in unique.to_pylist()]
        self._counts.put(unique, pa.array(after, pa.int64()))
        for group, rows in Counter(self._rows.record_groups.to_pylist()).items():
            self._rows.put(group, str(int(self._rows.get(group) or b"0") + rows).encode())
        return [
            pa.RecordBatch.from_pydict(
                {"id": batch.column("id"), "n": pa.array(numbers, pa.int64())}
            )
        ]


class Total(Operator, ListCheckpointed):
    """The rows that each subtask has seen, emitted at the end."""

    output_schema = "id long, n long"

    def __init__(self) -> None:
        self._seen = 0

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        self._seen += batch.num_rows
        return [batch]

    def finish(self) -> list[pa.RecordBatch]:
        row = {"id": pa.array([-1], pa.int64()), "n": pa.array([self._seen], pa.int64())}
        return [pa.RecordBatch.from_pydict(row)]

    def snapshot_list(self, context: SnapshotContext | None) -> list[Any]:
        return [self._seen]

    def restore_list(self, elements: list[Any]) -> None:
        self._seen = sum(elements)


def counting_job(place: Place, *, bounded: bool, parallelism: int) -> weir.Job:
    job = weir.Job("counts")
    stream = job.source("numbers", numbers(place), bounded=bounded)
    stream = stream.transform("keyed", lambda frame: frame.selectExpr("id", "id % 7 as key"))
    stream = stream.process("counts", Counts(), key_by="key", parallelism=parallelism)
    stream = stream.process("total", Total(), parallelism=parallelism)
    stream.sink("counted", weir.sinks.Files(str(place.directory / "out")))
    return job


@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(300)
def test_state_continues_over_restarts_and_with_another_number_of_subtasks(place: Place) -> None:
    """Keyed values follow their keys, lists are redistributed: the counts equal those of one run
    (B7, G2)."""
    conf = settings(place, RESTARTED)
    place.land(2)
    with LiveJob(counting_job(place, bounded=False, parallelism=2), conf) as live:
        live.wait_for_records(2 * ROWS_PER_FILE)
        live.checkpoint()
        place.land(1)
    with LiveJob(counting_job(place, bounded=False, parallelism=2), conf) as live:
        live.wait_for_records(ROWS_PER_FILE)
        savepoint = live.gateway.stop_with_savepoint(None).result().external_path
    with weir.read_savepoint(savepoint) as saved:
        keyed, total = saved.operator_state("counts").keyed, saved.operator_state("total").lists
        counts, rows = keyed["counts"], place.rows().total()
        assert sum(int(raw) for raw in keyed["rows"]["raw"].to_pylist()) == rows
        assert (sum(counts["value"].to_pylist()), sorted(counts["key"].to_pylist())) == (
            rows,
            list(range(7)),
        )
        assert sum(number for subtask in total["list-checkpointed"] for number in subtask) == rows
    place.land(2)
    rescaled = counting_job(place, bounded=True, parallelism=3)
    with LiveJob(rescaled, conf, from_savepoint=savepoint) as live:
        assert live.result().status is JobStatus.FINISHED
    ids = sorted(row[0] for row in place.rows())
    found = files_rows(place.directory / "out")
    totals = [n for (id_, n), times in found.items() for _ in range(times) if id_ == -1]
    counts = sorted((id_ % 7, n) for id_, n in found.elements() if id_ >= 0)
    of_key = Counter(id_ % 7 for id_ in ids)
    assert counts == sorted((key, n) for key, total in of_key.items() for n in range(1, total + 1))
    assert sum(totals) == len(ids)


class PairCounts(Operator):
    """The number of rows per pair, emitted at the end."""

    output_schema = "key long, half double, n long"

    def initialize_state(self, state: StateStore) -> None:
        self._counts = state.keyed_state("counts", pa.int64(), 0)

    def process_batch(self, batch: pa.RecordBatch) -> None:
        counted = batch.to_pandas().groupby(["key", "half"], dropna=False).size().reset_index()
        names = ["key", "half"]
        columns = [pa.array(counted[name], batch.schema.field(name).type) for name in names]
        pairs = pa.StructArray.from_arrays(columns, names)
        before = self._counts.get(pairs).to_numpy()
        self._counts.put(pairs, pa.array(before + counted[0].to_numpy()))

    def finish(self) -> list[pa.RecordBatch]:
        return [
            pa.RecordBatch.from_arrays(
                [*batch["key"].flatten(), batch["value"]], names=["key", "half", "n"]
            )
            for batch in self._counts.items()
        ]


@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(300)
def test_several_columns_are_one_key(place: Place) -> None:
    """With zeros of both signs, over a restore with another number of subtasks."""
    conf = settings(place, RESTARTED)

    def job(parallelism: int, *, bounded: bool) -> weir.Job:
        one = weir.Job("pairs")
        stream = one.source("numbers", numbers(place), bounded=bounded)
        halves = "if(id % 8 = 4, double('-0.0'), double(id % 4)) as half"
        pairs = "id % 3 as key", halves
        stream = stream.transform("pairs", lambda frame: frame.selectExpr(*pairs))
        stream = stream.process(
            "counts", PairCounts(), key_by=["key", "half"], parallelism=parallelism
        )
        stream.sink("counted", weir.sinks.Files(str(place.directory / "out")))
        return one

    place.land(2)
    with LiveJob(job(2, bounded=False), conf) as live:
        live.wait_for_records(2 * ROWS_PER_FILE)
        savepoint = live.gateway.stop_with_savepoint(None).result().external_path
    place.land(1)
    with LiveJob(job(3, bounded=True), conf, from_savepoint=savepoint) as live:
        assert live.result().status is JobStatus.FINISHED
    ids = [row[0] for row in place.rows().elements()]
    counted = Counter((number % 3, float(number % 4)) for number in ids)
    assert files_rows(place.directory / "out") == Counter((*pair, n) for pair, n in counted.items())


@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(300)
def test_a_restore_by_another_type_of_the_key_is_refused(place: Place) -> None:
    """Spark computes other key groups from it, so every value would be lost in silence."""

    def job(kind: str) -> weir.Job:
        one = weir.Job("counts")
        stream = one.source("numbers", numbers(place))
        keyed = f"cast(id % 7 as {kind}) as key"
        stream = stream.transform("keyed", lambda frame: frame.selectExpr("id", keyed))
        stream = stream.process("counts", Counts(), key_by="key", parallelism=2)
        stream.sink("counted", weir.sinks.Files(str(place.directory / "out")))
        return one

    conf = settings(place, RESTARTED)
    place.land(1)
    with LiveJob(job("long"), conf) as live:
        live.wait_for_records(ROWS_PER_FILE)
        savepoint = live.gateway.stop_with_savepoint(None).result().external_path
    with LiveJob(job("int"), conf, from_savepoint=savepoint) as live:
        result = live.result()
    assert (result.status, live.gateway.view().attempt) == (JobStatus.FAILED, 1)
    says = "Operator 'counts' is keyed by 'key' (int), but its state was saved by 'key' (bigint)"
    assert says in (result.failure or "")


class Misspelt(Operator):
    """Emits another column than it declares."""

    output_schema = "number long"

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        return [batch.select(["id"])]


@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(300)
def test_output_that_was_not_declared_fails_the_job_for_good(place: Place) -> None:
    """Every restart would fail too: the error names both sides."""
    job = weir.Job("misspelt")
    stream = job.source("numbers", numbers(place)).process("misspelt", Misspelt(), parallelism=1)
    stream.sink("out", weir.sinks.Files(str(place.directory / "out")))
    place.land(1)
    with LiveJob(job, settings(place, RESTARTED)) as live:
        result = live.result()
    assert (result.status, live.gateway.view().attempt) == (JobStatus.FAILED, 1)
    assert "Operator 'misspelt' emits the columns id, but declares number: change its" in (
        result.failure or ""
    )


class Pairs(ListCheckpointed, Operator):
    """Keeps a tuple, which would come back as a list."""

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        return [batch]

    def snapshot_list(self, context: SnapshotContext | None) -> list[Any]:
        return ["kept", (1, 2)]

    def restore_list(self, elements: list[Any]) -> None:
        return


@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(300)
def test_state_that_json_would_change_fails_the_job_by_its_place(place: Place) -> None:
    """Before any checkpoint contains it."""
    job = weir.Job("pairs")
    stream = job.source("numbers", numbers(place)).process("pairs", Pairs(), parallelism=1)
    stream.sink("out", weir.sinks.Files(str(place.directory / "out")))
    place.land(1)
    with LiveJob(job, settings(place)) as live:
        result = live.result()
    assert result.status is JobStatus.FAILED
    says = (
        "of operator 'pairs' cannot be stored, since JSON cannot represent (1, 2) (tuple) at [1]:"
        " make it of text"
    )
    assert says in (result.failure or "")


class Told(Operator):
    """Emits the checkpoints it was notified of; a batch of rows lasts while the mark exists."""

    output_schema = "how string, checkpoint long"

    def __init__(self, mark: Path) -> None:
        self._mark = mark
        self._told: list[tuple[str, int]] = []

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._told.append(("completed", checkpoint_id))

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self._told.append(("aborted", checkpoint_id))

    def process_batch(self, batch: pa.RecordBatch) -> None:
        while self._mark.exists():
            self._mark.with_name("waits").touch()
            time.sleep(0.05)

    def end_batch(self) -> list[pa.RecordBatch]:
        told, self._told = self._told, []
        how, checkpoints = [one for one, _ in told], pa.array([one for _, one in told], pa.int64())
        return [
            pa.RecordBatch.from_pydict(
                {"how": pa.array(how, pa.string()), "checkpoint": checkpoints}
            )
        ]


@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(300)
def test_operators_learn_how_checkpoints_ended_with_their_next_batch(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Including one that was aborted before its barrier came."""
    clock = LaterClock()
    monkeypatch.setattr("weir.runtime.concurrency.SystemClock", lambda: clock)
    mark = place.directory / "mark"
    job = weir.Job("told")
    stream = job.source("numbers", numbers(place)).process("told", Told(mark), parallelism=1)
    stream.sink("out", weir.sinks.Files(str(place.directory / "out")))
    conf = settings(place, timeout="1h", tolerable_failed_checkpoints="10")
    place.land(1)
    with LiveJob(job, conf) as live:
        live.wait_for_records(ROWS_PER_FILE)
        completed = live.checkpoint().checkpoint_id
        mark.touch()
        place.land(1)
        wait_until(mark.with_name("waits").exists, "the batch runs")
        asked = live.gateway.trigger_checkpoint()
        live.wait_for(lambda view: view.checkpoints.counts.in_progress == 1, "it is triggered")
        clock.ahead_ms = 3_600_000
        # A look wakes the main thread.
        live.wait_for(lambda view: view.checkpoints.counts.failed == 1, "it has expired")
        with pytest.raises(WeirError, match="expired"):
            asked.result()
        (aborted,) = (known.checkpoint_id for known in live.history("FAILED"))
        mark.unlink()
        live.wait_for_records(2 * ROWS_PER_FILE)
        place.land(1)
        live.wait_for_records(3 * ROWS_PER_FILE)
        live.checkpoint()
        told = Counter([("completed", completed), ("aborted", aborted)])
        wait_until(lambda: files_rows(place.directory / "out") == told, "the rows are visible")


class Marked(RulesOperator):
    """Marks each row with the rules in force."""

    output_schema = "id long, rules string"

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        rules = ",".join(f"{name}={rule}" for name, rule in sorted(self.rules.items()))
        return [
            pa.RecordBatch.from_pydict(
                {"id": batch.column("id"), "rules": [rules] * batch.num_rows}
            )
        ]


def rules_job(place: Place) -> weir.Job:
    job = weir.Job("rules")
    stream = job.source("numbers", numbers(place)).transform(
        "ids", lambda frame: frame.select("id")
    )
    stream = stream.process(
        "mark", Marked(), coordinator=BroadcastRules({"a": 1}, new_rules="accept"), parallelism=2
    )
    stream.sink("marked", weir.sinks.Files(str(place.directory / "out")))
    return job


@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(300)
def test_rules_are_changed_while_a_job_runs_and_outlive_its_failure(place: Place) -> None:
    """Rows read after an acknowledged change are marked with it, also by the next driver."""
    conf = settings(place, RESTARTED, interval="200ms")
    place.land(1)
    with LiveJob(rules_job(place), conf) as live:
        live.wait_for_records(1)
        with connect(live.job_id, live.address) as client:
            assert client.send("mark", {"set": {"b": 2}}) == {"rules": {"a": 1, "b": 2}}
            with pytest.raises(
                RestError, match="there is no rule 'c' to remove; the rules are: a, b"
            ):
                client.send("mark", {"remove": ["c"]})
            with pytest.raises(RestError, match="; those with a coordinator: mark"):
                client.send("marks", {})
            place.land(1)
            wait_until(lambda: _marked(place)["a=1,b=2"] > 0, "the change reaches the rows")
            assert client.send("mark", {"remove": ["a"]}) == {"rules": {"b": 2}}
    place.land(1)
    with LiveJob(rules_job(place), conf) as live:
        wait_until(lambda: _marked(place).total() == place.rows().total(), "every row is committed")
    newest = retained(place.directory / "checkpoints" / live.job_id)[-1]
    with weir.read_savepoint(str(newest)) as saved:
        state = saved.operator_state("mark")
        assert (state.coordinator, state.lists["rules"]) == (
            {"rules": {"b": 2}},
            [[["b", 2]], [["b", 2]]],
        )
    marks = _marked(place)
    assert list(marks) == ["a=1", "a=1,b=2", "b=2"]
    assert len(set(marks.values())) == 1


def _marked(place: Place) -> Counter[str]:
    """The number of rows per set of rules, in the order of the rows."""
    rows = sorted(files_rows(place.directory / "out").elements())
    return Counter(rules for _, rules in rows)
