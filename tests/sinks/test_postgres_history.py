"""Older checkpoints of a PostgreSQL table (``epoch_column``), on a real server."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest
from tests.kit.sink import sink_context
from tests.kit.waiting import wait_until
from tests.sinks.postgres_database import JOB, Database, Frame, flushed, rows
from tests.sinks.test_read_consistent import Records
from tests.sinks.test_read_consistent import Writer as DeltaWriter

import weir
from weir.errors import CutNotFoundError, SinkError, SinkMismatchError, StorageError
from weir.sinks import Batch, PostgresTable

NUMBERED: dict[str, Any] = {"create": True, "epoch_column": "weir_epoch"}
OTHER = "f" * 32


class Writer:
    """A sink of a job and its table ``t``."""

    def __init__(
        self, database: Database, *, directory: str | None = None, leaves_out: bool = False
    ) -> None:
        self.sink = PostgresTable(database.dsn, "t", **NUMBERED)
        self._position = 0
        context = sink_context(job_id=JOB, job_directory=directory, leaves_out=leaves_out)
        self.sink.check(context)
        self.sink.open(context)

    def commit(self, checkpoint: int, *ids: int) -> None:
        payload = flushed(self.sink, self._position, rows(*((one, "x") for one in ids)))
        self._position += 1
        assert self.sink.commit(checkpoint, [payload]) == len(ids)


def as_of(database: Database, checkpoint: int, column: str = "weir_epoch") -> list[int]:
    """What a view of one WHERE clause shows."""
    found = database.sql(f"SELECT id FROM t WHERE {column} <= {checkpoint} ORDER BY id")
    return [key for (key,) in found]


def ids(database: Database, cut: weir.ConsistentCut) -> list[int]:
    return sorted(row[0] for row in database.sql(cut.query("out")))


def test_each_row_has_the_number_of_the_checkpoint_that_committed_it(database):
    """However often the commit is repeated, and by whichever driver (PROTOCOL P13, P18)."""
    sink = database.opened(**NUMBERED)
    first = flushed(sink, 0, rows((1, "a"), (2, "b")))
    assert sink.commit(3, [first]) == 2
    again = database.opened(attempt=2, **NUMBERED)
    assert [again.commit(3, [first]), sink.commit(3, [first])] == [0, 0]
    assert again.commit(5, []) == 0
    assert again.commit(8, [flushed(again, 1, rows((3, "c")))]) == 1
    assert database.sql("SELECT id, v, weir_epoch FROM t ORDER BY id") == [
        (1, "a", 3),
        (2, "b", 3),
        (3, "c", 8),
    ]
    assert [as_of(database, number) for number in (2, 3, 7, 8)] == [[], [1, 2], [1, 2], [1, 2, 3]]
    assert database.sql(
        "SELECT relation::text, column_name, epoch, after, joins, sink FROM weir.history ORDER BY 3"
    ) == [("t", "weir_epoch", 3, 0, False, "out"), ("t", "weir_epoch", 8, 3, False, "out")]


def test_a_commit_that_does_not_land_leaves_no_number(table, monkeypatch):
    """Rows, ledger and history are one transaction."""
    table.sql("ALTER TABLE t ADD CHECK (id < 10), ADD COLUMN weir_epoch bigint")
    sink = table.opened(**NUMBERED)
    with pytest.raises(SinkMismatchError, match="violates check"):
        sink.commit(1, [flushed(sink, 0, rows((1, "a"), (10, "b")))])
    assert table.sql("SELECT count(*) FROM weir.history") == [(0,)]
    rejecting = table.opened(attempt=2, rejects="bad", **NUMBERED)
    assert rejecting.commit(2, [flushed(rejecting, 1, rows((1, "a"), (10, "b")))]) == 1
    assert table.sql("SELECT id, weir_epoch FROM t") == [(1, 2)]
    assert table.sql('SELECT "row" FROM bad') == [({"id": 10, "v": "b"},)]


def test_columns_are_added_beside_the_numbers(database):
    """To each checkpoint belong the rows of its time, with null where they had no value."""
    sink = database.opened(schema_evolution="add", **NUMBERED)
    sink.commit(1, [flushed(sink, 0, rows((1, "a")))])
    frame: Any = Frame([{"id": 2, "w": 7}], id="long", w="long")
    payload = sink.stage(frame, Batch(batch_id=1))
    assert payload is not None
    sink.commit(2, sink.flush([payload]))
    assert database.sql("SELECT id, v, weir_epoch, w FROM t ORDER BY id") == [
        (1, "a", 1, None),
        (2, None, 2, 7),
    ]


def test_a_column_of_numbers_that_is_gone_is_not_added_again(database):
    """The rows that had numbers would be part of no checkpoint."""
    sink = database.opened(schema_evolution="add", **NUMBERED)
    sink.commit(1, [flushed(sink, 0, rows((1, "a")))])
    payload = flushed(sink, 1, rows((2, "b")))
    database.sql("ALTER TABLE t RENAME COLUMN weir_epoch TO other")
    with pytest.raises(SinkMismatchError, match="has no column 'weir_epoch'"):
        sink.commit(2, [payload])
    database.sql("ALTER TABLE t RENAME COLUMN other TO weir_epoch")
    assert sink.commit(2, [payload]) == 1


def test_rows_that_were_there_before_are_older_than_every_checkpoint(table):
    """With the statements that the message names; other writers' rows get no number."""
    table.sql("INSERT INTO t VALUES (1, 'old')")
    with pytest.raises(SinkMismatchError, match=r"no column 'weir_epoch'.*run ALTER TABLE") as told:
        table.opened(**NUMBERED)
    table.sql(str(told.value).split("run ")[1].split(". Rows")[0])
    sink = table.opened(**NUMBERED)
    assert sink.commit(4, [flushed(sink, 0, rows((2, "new")))]) == 1
    table.sql("INSERT INTO t VALUES (3, 'by hand')")
    assert [as_of(table, 3), as_of(table, 4)] == [[1], [1, 2]]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("integer", "must be a bigint without a default.*but is integer"),
        ("bigint DEFAULT 0", "but is bigint with a default"),
        ("bigint GENERATED ALWAYS AS (id) STORED", "but is bigint with a default"),
        ("text", "but is text"),
    ],
)
def test_a_column_that_cannot_keep_numbers_is_refused_at_the_start(table, column, message):
    """So is one whose default would number other writers' rows."""
    table.sql(f"ALTER TABLE t ADD COLUMN weir_epoch {column}")
    with pytest.raises(SinkMismatchError, match=message):
        table.opened(**NUMBERED)


def test_a_column_with_numbers_of_unknown_origin_is_not_written_to(table):
    """They would be taken for checkpoints."""
    table.sql("ALTER TABLE t ADD COLUMN weir_epoch bigint")
    table.sql("INSERT INTO t VALUES (1, 'a', 77)")
    unknown = "numbers that no job is known to have written: run ALTER TABLE"
    with pytest.raises(SinkMismatchError, match=unknown):
        table.opened(**NUMBERED)
    sink = table.opened_again(**NUMBERED)
    payload = flushed(sink, 0, rows((2, "b")))
    with pytest.raises(SinkMismatchError, match=unknown):
        sink.commit(1, [payload])
    table.sql("UPDATE t SET weir_epoch = 0")
    assert sink.commit(1, [payload]) == 1


def test_rows_without_a_number_are_not_left_out_of_a_history_that_begins(table):
    """The job wrote them without the option, after the column had been added."""
    plain = table.opened()
    table.sql("ALTER TABLE t ADD COLUMN weir_epoch bigint")
    plain.commit(1, [flushed(plain, 0, rows((1, "a")))])
    with pytest.raises(SinkMismatchError, match=r"no number in some rows .* run UPDATE") as told:
        table.opened(attempt=2, **NUMBERED)
    sink = table.opened_again(attempt=2, **NUMBERED)
    payload = flushed(sink, 1, rows((2, "b")))
    with pytest.raises(SinkMismatchError, match="no number in some rows"):
        sink.commit(2, [payload])
    table.sql(str(told.value).split("run ")[1].split(", which")[0])
    assert sink.commit(2, [payload]) == 1
    assert [as_of(table, 1), as_of(table, 2)] == [[1], [1, 2]]


@pytest.mark.parametrize("change", [{"job": OTHER}, {"sink_name": "other"}])
def test_another_job_or_sink_needs_a_column_of_its_own(database, change):
    """Its checkpoints have the same numbers, also if it starts from the first one's savepoint; the
    message has the statements, after which both histories are right."""
    first = database.opened(**NUMBERED)
    first.commit(1, [flushed(first, 0, rows((1, "a")))])
    first.commit(2, [flushed(first, 1, rows((2, "b")))])
    with pytest.raises(SinkMismatchError, match=f"job {JOB}, sink 'out', up to 2.*run") as told:
        database.opened(**change, **NUMBERED)
    database.sql(str(told.value).split(": run ")[1].split(", and give")[0])
    second = database.opened(**change, **{**NUMBERED, "epoch_column": "weir_epoch_2"})
    second.commit(1, [flushed(second, 0, rows((3, "c")))])
    first.commit(3, [flushed(first, 2, rows((4, "d")))])
    assert [as_of(database, n) for n in (1, 2, 3)] == [[1], [1, 2], [1, 2, 4]]
    assert [as_of(database, n, "weir_epoch_2") for n in (0, 1)] == [[1, 2], [1, 2, 3]]


def test_of_two_jobs_that_begin_at_once_one_has_the_column(table):
    """Both have passed the check at the start."""
    table.sql("ALTER TABLE t ADD COLUMN weir_epoch bigint")
    sinks = [table.opened(job=job, **NUMBERED) for job in (JOB, OTHER)]
    payloads = [flushed(sink, 0, rows((number, "x"))) for number, sink in enumerate(sinks)]
    failures: list[SinkError] = []

    def commit(number: int) -> None:
        try:
            sinks[number].commit(number + 1, [payloads[number]])
        except SinkError as error:
            failures.append(error)

    threads = [threading.Thread(target=commit, args=[number]) for number in range(2)]
    with psycopg.connect(table.dsn) as rival:
        rival.execute("LOCK TABLE t IN SHARE MODE")
        for thread in threads:
            thread.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        wait_until(lambda: table.sql(waiting) == [(2,)], "neither can insert yet")
    for thread in threads:
        thread.join()
    assert len(failures) == 1
    assert "whose numbers would be mixed" in str(failures[0])
    assert table.sql("SELECT count(*) FROM t") == [(1,)]


def resumed_elsewhere(database: Database, column: str) -> PostgresTable:
    """The sink of job OTHER while it commits what was pending in the savepoint of JOB."""
    context = sink_context(job_id=JOB, job_directory=f"/checkpoints/{OTHER}")
    sink = PostgresTable(database.dsn, "t", create=True, epoch_column=column)
    sink.open(context)
    return sink


def test_pending_rows_of_another_jobs_savepoint_are_older_than_every_checkpoint(database):
    """They are committed in that job's name, whose ids mean nothing here (PROTOCOL P14, P19)."""
    old = database.opened("old", create=True)
    pending = flushed(old, 0, rows((1, "a")))
    assert resumed_elsewhere(database, "weir_epoch").commit(19, [pending]) == 1
    resumed = database.opened(job=OTHER, **NUMBERED)
    resumed.commit(1, [flushed(resumed, 0, rows((2, "b")))])
    assert [as_of(database, 0), as_of(database, 1)] == [[1], [1, 2]]


def test_the_column_of_a_job_whose_pending_rows_went_to_another_column_is_not_read(database):
    """Its history lacks them."""
    old = database.opened(**NUMBERED)
    old.commit(1, [flushed(old, 0, rows((1, "a")))])
    pending = flushed(old, 1, rows((2, "b")))
    assert weir.read_consistent({"out": old}).checkpoint_id == 1
    database.sql("ALTER TABLE t ADD COLUMN weir_epoch_2 bigint DEFAULT 0")
    database.sql("ALTER TABLE t ALTER COLUMN weir_epoch_2 DROP DEFAULT")
    assert resumed_elsewhere(database, "weir_epoch_2").commit(2, [pending]) == 1
    assert as_of(database, 0, "weir_epoch_2") == [1, 2]
    with pytest.raises(StorageError, match=r"rows of checkpoint 2 of job .* without a number"):
        weir.read_consistent({"out": old})


def test_a_history_that_would_lack_rows_is_not_continued(table, tmp_path):
    """The job ran without its column for a while."""
    table.sql("ALTER TABLE t ADD COLUMN weir_epoch bigint")
    sink = table.opened(**NUMBERED)
    sink.commit(1, [flushed(sink, 0, rows((1, "a")))])
    plain = table.opened(attempt=2)
    plain.commit(2, [flushed(plain, 1, rows((2, "b")))])
    reader = PostgresTable(table.dsn, "t", **NUMBERED)
    with pytest.raises(StorageError, match=r"has rows of checkpoint 2 of job .* without a number"):
        weir.read_consistent({"out": reader})
    lacking = r"rows of checkpoint 2 without a number.*is 1: run ALTER TABLE"
    with pytest.raises(SinkMismatchError, match=lacking):
        table.opened(attempt=3, **NUMBERED)
    again = table.opened_again(attempt=3, **NUMBERED)
    payload = flushed(again, 2, rows((3, "c")))
    with pytest.raises(SinkMismatchError, match=lacking):
        again.commit(3, [payload])


def test_a_history_begins_where_the_column_does(table, tmp_path):
    """No older checkpoint can be read: their rows have no numbers of their own."""
    plain = table.opened()
    for checkpoint in (1, 2):
        plain.commit(checkpoint, [flushed(plain, checkpoint, rows((checkpoint, "x")))])
    table.sql("ALTER TABLE t ADD COLUMN weir_epoch bigint DEFAULT 0")
    table.sql("ALTER TABLE t ALTER COLUMN weir_epoch DROP DEFAULT")
    sink = table.opened(attempt=2, **NUMBERED)
    sink.commit(4, [flushed(sink, 3, rows((4, "x")))])
    found = [ids(table, weir.read_consistent({"out": sink}, checkpoint_id=n)) for n in (2, 3, 4)]
    assert found == [[1, 2], [1, 2], [1, 2, 4]]
    with pytest.raises(StorageError, match="no checkpoint of the job up to it"):
        weir.read_consistent({"out": sink}, checkpoint_id=1)


def test_a_table_that_is_created_again_has_a_history_of_its_own(database):
    """A new job may begin there; a renamed table keeps the one that it has."""
    sink = database.opened(**NUMBERED)
    sink.commit(1, [flushed(sink, 0, rows((1, "a")))])
    database.sql("ALTER TABLE t RENAME TO u")
    assert database.sql("SELECT DISTINCT relation::text FROM weir.history") == [("u",)]
    other = database.opened(job=OTHER, **NUMBERED)
    assert other.commit(1, [flushed(other, 0, rows((2, "b")))]) == 1
    with pytest.raises(SinkMismatchError, match=f"has the checkpoints of job {JOB}"):
        database.opened("u", job=OTHER, **NUMBERED)


def test_a_cut_shows_postgresql_and_delta_at_the_same_checkpoint(database, tmp_path):
    """The newest that both show, or an older one, whatever is committed later."""
    records = Records(str(tmp_path / "checkpoints"))
    writer = Writer(database, directory=records.directory)
    delta = DeltaWriter(tmp_path / "delta", directory=records.directory)
    tables = {"out": writer.sink, "delta": str(delta.path)}
    for checkpoint in (1, 2, 3):
        writer.commit(checkpoint, checkpoint)
        if checkpoint < 3:
            delta.commit(checkpoint, checkpoint)
    cut = weir.read_consistent(tables)
    assert (cut.checkpoint_id, cut.versions) == (2, {"out": 2, "delta": 1})
    writer.commit(4, 4)
    assert ids(database, cut) == [1, 2]
    assert ids(database, weir.read_consistent(tables, checkpoint_id=1)) == [1]
    with pytest.raises(CutNotFoundError, match=r"Checkpoint 3 .* not visible in all tables, but 2"):
        weir.read_consistent(tables, checkpoint_id=3)
    with pytest.raises(StorageError, match=r"run cut.query\('out'\)"):
        cut.table("out")
    with pytest.raises(StorageError, match="no PostgreSQL table named 'delta'"):
        cut.query("delta")


def test_an_empty_epoch_does_not_hold_the_cut_back_and_a_pending_one_does(database, tmp_path):
    """As for the other tables, the job's records tell them apart."""
    records = Records(str(tmp_path / "checkpoints"))
    writer = Writer(database, directory=records.directory)
    delta = DeltaWriter(tmp_path / "delta", directory=records.directory)
    tables = {"out": writer.sink, "delta": str(delta.path)}
    for checkpoint in (1, 5):
        delta.commit(checkpoint, checkpoint)
    writer.commit(1, 1)
    records.complete(5, sinks=("out", "delta"))
    assert weir.read_consistent(tables).checkpoint_id == 5
    records.complete(6, sinks=("out", "delta"), out={4: 1})
    cut = weir.read_consistent(tables)
    assert (cut.versions["out"], ids(database, cut)) == (1, [1])
    assert sorted(cut.table("delta").to_pyarrow_table()["id"].to_pylist()) == [1]


def test_between_two_commits_of_a_sink_that_leaves_out_checkpoints_only_the_first_is_shown(
    database, tmp_path
):
    """Rows of checkpoints 2 to 5 have the number 5: at 3, some of them are missing."""
    writer = Writer(database, leaves_out=True)
    writer.commit(1, 1)
    writer.commit(5, 2, 3, 4, 5)
    tables = {"out": writer.sink}
    with pytest.raises(CutNotFoundError, match="has left it out"):
        weir.read_consistent(tables, checkpoint_id=3)
    assert ids(database, weir.read_consistent(tables, checkpoint_id=5)) == [1, 2, 3, 4, 5]


def test_a_table_without_a_history_is_not_part_of_a_cut(table):
    """The message says what would keep one, and what helps without."""
    with pytest.raises(StorageError, match="keeps no older rows: give the sink epoch_column="):
        weir.read_consistent({"out": table.opened()})
    with pytest.raises(CutNotFoundError, match="No PostgreSQL table found for table 'out'"):
        weir.read_consistent({"out": PostgresTable(table.dsn, "none", **NUMBERED)})
    with pytest.raises(StorageError, match="No Weir job has written to table 'out'"):
        weir.read_consistent({"out": PostgresTable(table.dsn, "t", **NUMBERED)})
    with pytest.raises(StorageError, match="does not answer now"):
        weir.read_consistent({"out": PostgresTable("host=127.0.0.1 port=1", "t", **NUMBERED)})


def test_rows_with_a_column_of_that_name_are_refused_before_the_first(database):
    """And so are arguments that contradict each other."""
    sink = database.opened(**{**NUMBERED, "epoch_column": "v"})
    with pytest.raises(SinkMismatchError, match="into 'v', but the rows have a column of that"):
        flushed(sink, 0, rows((1, "a")))
    for options in ({"mode": "upsert", "key": ["id"]}, {}):
        with pytest.raises(SinkError, match="give the name of a column, and only with mode='app"):
            PostgresTable("host=nowhere", "t", epoch_column="" if not options else "n", **options)


def test_rights_for_the_history_are_checked_at_the_start(table):
    """The rows of the table, and those of weir.history, must be readable."""
    ((name,),) = table.sql("SELECT current_database()")
    owner = table.opened(**{**NUMBERED, "table": "other"})
    owner.commit(1, [flushed(owner, 0, rows((1, "a")))])
    table.sql("ALTER TABLE t ADD COLUMN weir_epoch bigint")
    table.sql(f"CREATE ROLE reader_{name} LOGIN")
    table.sql(f"GRANT CREATE, USAGE ON SCHEMA weir TO reader_{name}")
    table.sql(f"GRANT INSERT ON t TO reader_{name}")
    table.sql(f"GRANT ALL ON weir.commits TO reader_{name}")
    dsn = table.dsn.replace(f"user={table.server.role}", f"user=reader_{name}")
    guest = Database(table.server, dsn)
    for right, where in (("INSERT", "weir.history"), ("SELECT", "weir.history"), ("SELECT", "t")):
        with pytest.raises(SinkError, match=f"run GRANT {right} ON .*{where.split('.')[-1]}"):
            guest.opened(**NUMBERED)
        table.sql(f"GRANT {right} ON {where} TO reader_{name}")
    sink = guest.opened(**NUMBERED)
    assert sink.commit(1, [flushed(sink, 0, rows((1, "a")))]) == 1


def test_a_long_history_is_read_as_far_as_needed(database, monkeypatch):
    """A page of commits at a time."""
    monkeypatch.setattr("weir.sinks.postgres.history._PAGE", 2)
    writer = Writer(database)
    for checkpoint in range(1, 6):
        writer.commit(checkpoint, checkpoint)
    log = writer.sink.history("out")
    assert [entry.version for entry in log.entries()] == [5, 4, 3, 2, 1]
    database.sql("UPDATE weir.commits SET job_directory = 'not absolute'")
    with pytest.raises(StorageError, match=r"The history of table 'out' .* cannot be read"):
        log.newest()
