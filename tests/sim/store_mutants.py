"""Broken variants of the sinks' commits and of the object storage, for the simulated stores.

Each is what a careless change of a few lines would do. ``STORE_MUTANTS`` lists them all, with the
sink of the run, the words that the violation must contain, and a seed that is known to catch it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec
from tests.sim.mutants import _jobs_with, _with

from weir.core.types import Payload, Recorded
from weir.errors import StorageError
from weir.sim.stores import kafka as kafka_store
from weir.sim.stores import placing
from weir.sim.stores.faults import Rates
from weir.sim.stores.kafka import SimKafkaClient, SimProducer
from weir.sinks.base import SinkContext
from weir.sinks.delta.sink import DeltaTable
from weir.sinks.files.sink import Files, Move
from weir.sinks.iceberg import ledger as iceberg_ledger
from weir.sinks.iceberg import target as iceberg_target_module
from weir.sinks.iceberg.client import OneCommit
from weir.sinks.iceberg.sink import IcebergTable
from weir.sinks.kafka import repair as kafka_repair
from weir.sinks.kafka.client import KafkaFailure, Outgoing
from weir.sinks.kafka.ledger import Ledger as KafkaLedger
from weir.sinks.kafka.repair import Found
from weir.sinks.kafka.sink import KafkaTopic
from weir.sinks.postgres import sink as postgres
from weir.sinks.postgres import staging as postgres_staging
from weir.sinks.postgres.insert import Insert
from weir.sinks.postgres.sink import PostgresTable
from weir.sinks.postgres.target import Ledger
from weir.sinks.staging import ConflictError, FileSink, SureSync
from weir.storage.filesystem import CreateResult
from weir.storage.job_log import JobLogWriter, JobRecord
from weir.storage.numbered_log import Recorder
from weir.storage.object_store import ObjectStoreFileSystem

Variant = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, kw_only=True)
class StoreMutant:
    """One broken variant."""

    variant: Variant
    #: The product's sink of the run's first table.
    kind: str
    #: The violation must contain one of these texts.
    says: tuple[str, ...]
    #: A seed that is known to catch the variant; tried first.
    known_seed: int

    @property
    def name(self) -> str:
        """The name of the variant."""
        return getattr(self.variant, "__name__", "")


def _unlocked(self: Ledger, connection: Any) -> int:
    return self.newest(connection) or 0


# -- PostgresTable


def commit_without_the_lock() -> AbstractContextManager[None]:
    """The ledger is read, but its row is not locked (P18)."""
    return _with(patch.object(Ledger, "lock", _unlocked))


def commit_without_looking_in_the_ledger() -> AbstractContextManager[None]:
    """A repeated commit does not look whether its epoch is there (P18)."""
    lock = Ledger.lock

    def blind(self: Ledger, connection: Any) -> int:
        lock(self, connection)
        return 0

    return _with(
        patch.object(Ledger, "lock", blind),
        patch.object(PostgresTable, "_check_not_gone_back", lambda *_: None),
    )


def ledger_in_another_transaction() -> AbstractContextManager[None]:
    """The epoch is entered after the transaction with its rows (P18)."""
    commit, enter = PostgresTable.commit, Ledger.enter
    #: By the sink's context, since a driver may be killed within, and others commit meanwhile.
    later: dict[int, tuple[int, int]] = {}

    def entered_later(self: Ledger, connection: Any, epoch: int, rows: int) -> None:
        later[id(self.context)] = (epoch, rows)

    def in_two(self: PostgresTable, epoch: int, payloads: Sequence[Payload]) -> int:
        rows = commit(self, epoch, payloads)
        if (entry := later.pop(id(self._context), None)) is not None:
            with self._session(self._session_name) as connection:
                if self._ledger.lock(connection) < entry[0]:
                    enter(self._ledger, connection, *entry)
        return rows

    return _with(
        patch.object(PostgresTable, "commit", in_two), patch.object(Ledger, "enter", entered_later)
    )


def a_lost_answer_to_commit_counts_as_not_committed() -> AbstractContextManager[None]:
    """After an error of COMMIT the rows are inserted once more, without a look (P18)."""
    commit, lock = PostgresTable.commit, Ledger.lock
    compare = PostgresTable._check_not_gone_back
    #: The contexts of sinks that do not look.
    blind: set[int] = set()

    def locked(self: Ledger, connection: Any) -> int:
        found = lock(self, connection)
        return 0 if id(self.context) in blind else found

    def compared(self: PostgresTable, *given: Any) -> None:
        if id(self._context) not in blind:
            compare(self, *given)

    def again(self: PostgresTable, epoch: int, payloads: Sequence[Payload]) -> int:
        try:
            return commit(self, epoch, payloads)
        except StorageError as error:
            if "COMMIT" not in str(error):
                raise
        blind.add(id(self._context))
        try:
            return commit(self, epoch, payloads)
        finally:
            blind.discard(id(self._context))

    return _with(
        patch.object(PostgresTable, "commit", again),
        patch.object(PostgresTable, "_check_not_gone_back", compared),
        patch.object(Ledger, "lock", locked),
    )


def clean_leaves_the_sessions_of_dead_attempts() -> AbstractContextManager[None]:
    """Only the staging tables of dead attempts are cleaned up (P22)."""
    is_dead = PostgresTable._is_dead

    def tables_only(self: PostgresTable, name: str, attempt: int) -> bool:
        return name.startswith("s_") and is_dead(self, name, attempt)

    return _with(patch.object(PostgresTable, "_is_dead", tables_only))


def every_writer_counts() -> AbstractContextManager[None]:
    """All staged rows are inserted, also those of a Spark task's run that does not count (P39)."""

    def staged(self: Insert) -> str:
        return " UNION ALL ".join(f"SELECT * FROM {table}" for table in self.writers)

    return _with(patch.object(Insert, "_unordered", property(staged)))


def staged_rows_are_not_counted() -> AbstractContextManager[None]:
    """Neither a checkpoint nor a commit looks whether its staged rows are all there (P23)."""

    def there(connection: Any, payloads: Sequence[Payload]) -> str | None:
        found = damage(connection, payloads)
        return None if found is None or "lacks rows" in found else found

    damage = postgres.damage
    return _with(
        patch.object(postgres, "damage", there), patch.object(postgres_staging, "damage", there)
    )


def a_server_that_went_back_is_not_noticed() -> AbstractContextManager[None]:
    """The ledger may have an older epoch than was committed before (P21)."""
    return _with(patch.object(PostgresTable, "_check_not_gone_back", lambda *_: None))


def clean_does_not_wait_for_sessions_to_end() -> AbstractContextManager[None]:
    """A session that was told to end may still stage rows (P22)."""
    return _with(patch.object(postgres, "wait_until_ended", lambda *_: None))


def clean_drops_what_is_pending() -> AbstractContextManager[None]:
    """Dead attempts' tables are dropped before the pending commits are repeated (P5)."""
    opened = PostgresTable.open

    def cleaned(self: PostgresTable, context: SinkContext) -> None:
        opened(self, context)
        self.clean(context.attempt)

    return _with(patch.object(PostgresTable, "open", cleaned))


# -- IcebergTable


def iceberg_commits_without_looking_for_the_epoch() -> AbstractContextManager[None]:
    """After a conflict, the snapshot is added over the new state, even of this epoch (P18)."""
    commit = IcebergTable._commit_filled
    record_of = iceberg_ledger.record_of
    #: By the sink's context, the epoch that it commits.
    blind: dict[int, int] = {}

    def older(metadata: Any, context: SinkContext, *, place: str) -> Any:
        found, epoch = record_of(metadata, context, place=place), blind.get(id(context))
        if found is None or epoch is None:
            return found
        return msgspec.structs.replace(found, epoch=min(found.epoch, epoch - 1) or 1)

    def committed(self: IcebergTable, epoch: int, payloads: Sequence[Any]) -> int:
        blind[id(self._context)] = max(epoch, 2)
        try:
            return commit(self, max(epoch, 2), payloads)
        finally:
            del blind[id(self._context)]

    return _with(
        patch.object(iceberg_ledger, "record_of", older),
        patch.object(IcebergTable, "_commit_filled", committed),
        patch.object(IcebergTable, "_compare", lambda *_: None),
    )


def iceberg_commits_whatever_the_table_is_now() -> AbstractContextManager[None]:
    """The catalog is not asked to compare the table's current snapshot (P18).

    A catalog refuses a snapshot whose sequence number is old, unless it is the first of its table.
    So only a late first commit undoes others, and late requests are common here.
    """
    rates = placing._rates

    def often_late(random: Random, until_us: int) -> Rates:
        return replace(rates(random, until_us), late=0.3)

    def commit_table(self: OneCommit, table: Any, requirements: Any, updates: Any) -> Any:
        return self._catalog.commit_table(table, (), updates)

    return _with(
        patch.object(OneCommit, "commit_table", commit_table),
        patch.object(placing, "_rates", often_late),
    )


def iceberg_takes_a_conflict_for_success() -> AbstractContextManager[None]:
    """Who meets a conflict believes that the other side has committed the epoch (P18)."""
    append = iceberg_target_module.IcebergTarget.append

    def appended(self: Any, table: Any, *given: Any) -> Any:
        try:
            return append(self, table, *given)
        except ConflictError:
            return table

    return _with(patch.object(iceberg_target_module.IcebergTarget, "append", appended))


def a_table_that_was_rolled_back_is_not_noticed() -> AbstractContextManager[None]:
    """The table may lack commits that it once had (P21)."""
    return _with(patch.object(IcebergTable, "_compare", lambda *_: None))


# -- DeltaTable


def delta_does_not_look_at_its_transaction() -> AbstractContextManager[None]:
    """A commit adds its files whatever version its application transaction has (P18)."""
    commit, load = DeltaTable._commit_filled, DeltaTable._load

    def loaded(self: DeltaTable) -> Any:
        table: Any = load(self)
        if table is not None:
            name, known = self._transaction_id, type(table).transaction_version
            table.transaction_version = lambda one: None if one == name else known(table, one)
        return table

    def blind(self: DeltaTable, epoch: int, payloads: Sequence[Any]) -> int:
        # Of this sink only: a driver may be killed within.
        with patch.object(self, "_load", partial(loaded, self)):
            return commit(self, epoch, payloads)

    return _with(patch.object(DeltaTable, "_commit_filled", blind))


def delta_takes_a_conflict_for_success() -> AbstractContextManager[None]:
    """A version that could not be written counts as written (P18)."""
    add = DeltaTable._add_files

    def added(self: DeltaTable, *given: Any) -> None:
        try:
            add(self, *given)
        except Exception:
            return

    return _with(patch.object(DeltaTable, "_add_files", added))


def delta_does_not_sync_its_log() -> AbstractContextManager[None]:
    """The new version of the log is left to the operating system (P23)."""
    return _with(patch.object(DeltaTable, "_sync_log", lambda *_: None))


# -- KafkaTopic


def kafka_does_not_ask_its_ledger() -> AbstractContextManager[None]:
    """An epoch is published whether or not its entry is there (P18)."""
    return _with(
        patch.object(KafkaTopic, "_look", _looked_blindly),
        patch.object(KafkaTopic, "_compare", lambda *_: None),
    )


def _looked_blindly(self: KafkaTopic, payloads: Sequence[Any]) -> tuple[None, int]:
    if self._producer is None:
        self._make_ready([])
    return None, 0


def kafka_takes_the_answer_for_the_commit() -> AbstractContextManager[None]:
    """The staged files go before readers see the entry in the ledger (P18)."""
    return _with(patch.object(KafkaTopic, "_confirm", lambda *_: None))


def kafka_writes_beside_what_hangs() -> AbstractContextManager[None]:
    """Nobody looks whether the broker has lost markers of the job's last transaction (P18)."""
    return _with(
        patch.object(KafkaTopic, "_check_none_hangs", lambda *_: None),
        patch.object(KafkaTopic, "_wait_until_stable", lambda *_: None),
    )


def kafka_does_not_wait_for_its_ledger() -> AbstractContextManager[None]:
    """What is behind an open transaction in the ledger counts as not committed (P18)."""
    return _with(patch.object(KafkaTopic, "_wait_until_stable", lambda *_: None))


def kafka_fences_nobody() -> AbstractContextManager[None]:
    """Every producer has a transactional id of its own (P18)."""
    producer = SimKafkaClient.producer

    def own(self: SimKafkaClient, transactional_id: str, **given: Any) -> Any:
        number = len(self.cluster.producers)
        return producer(self, f"{transactional_id}-{number}", **given)

    return _with(patch.object(SimKafkaClient, "producer", own))


def kafka_enters_the_epoch_in_another_transaction() -> AbstractContextManager[None]:
    """The rows are committed first, and then their entry in the ledger (P18)."""
    send = SimProducer.send

    def sent(self: SimProducer, records: Iterable[Outgoing]) -> int:
        given = list(records)
        if given and given[0].topic.startswith("weir-ledger"):
            self.commit(60.0)
            self.begin()
        return send(self, given)

    return _with(patch.object(SimProducer, "send", sent))


def kafka_publishes_again_without_asking() -> AbstractContextManager[None]:
    """After a commit without an answer, a new producer publishes the epoch once more (P18)."""
    publish = KafkaTopic._publish

    def again(self: KafkaTopic, producer: Any, epoch: int, payloads: Sequence[Any]) -> int:
        try:
            return publish(self, producer, epoch, payloads)
        except KafkaFailure:
            self._make_ready([])
        assert self._producer is not None
        return publish(self, self._producer, epoch, payloads)

    return _with(patch.object(KafkaTopic, "_publish", again))


def a_cluster_that_was_restored_is_not_noticed() -> AbstractContextManager[None]:
    """The ledger may lack an epoch that was committed (P21)."""
    return _with(
        patch.object(KafkaTopic, "_compare", lambda *_: None),
        patch.object(KafkaTopic, "check_not_gone_back", lambda *_: None),
    )


def the_repair_aborts_whatever_hangs() -> AbstractContextManager[None]:
    """It does not look whether readers have seen other parts of the transaction (P18)."""

    def aborted(*given: Any) -> list[Found]:
        found = kafka_repair.look(*given)
        return [replace(each, commit=each.commit and False) for each in found]

    return _with(patch.object(kafka_store, "look", aborted))


def kafka_entries_have_the_ends_of_their_own_rows_only() -> AbstractContextManager[None]:
    """Readers who stop at an entry miss the partitions to which its epoch has added none (P18)."""
    return _with(patch.object(KafkaLedger, "ends", lambda *_: {}))


# -- Files and what sinks with files share


def the_ledger_is_written_before_the_files_are_durable() -> AbstractContextManager[None]:
    """The epoch is entered while a crash may still undo its renames (P23)."""
    return _with(patch.object(SureSync, "sync_below", lambda *_: None))


def the_ledger_is_written_before_the_files_are_renamed() -> AbstractContextManager[None]:
    """The epoch is entered first, so a repeated commit believes that it is done (P13)."""
    commit_moves = Files._commit_moves

    def entered_first(self: Files, epoch: int, moves: list[Move]) -> int:
        self._enter(epoch, len(moves))
        return commit_moves(self, epoch, moves)

    return _with(patch.object(Files, "_commit_moves", entered_first))


def files_get_their_names_without_a_mark() -> AbstractContextManager[None]:
    """Nothing says that an epoch is shown in part until it is entered (P21)."""
    return _with(patch.object(Files, "_begin", lambda *_: None), _jobs_with(num_retained=3))


def staged_files_are_not_synced() -> AbstractContextManager[None]:
    """A checkpoint is acknowledged before what it has staged is on disk (P23)."""
    return _with(patch.object(FileSink, "_sync", lambda *_: None))


def a_late_driver_does_not_look_again() -> AbstractContextManager[None]:
    """Its successor has committed what it finds gone, and has cleaned up (P18)."""
    return _with(patch.object(FileSink, "_is_committed", lambda *_: False))


# -- object store


def ones_own_create_counts_as_anothers() -> AbstractContextManager[None]:
    """A repeated create that finds its own object has lost to itself (P17)."""
    return _with(patch.object(ObjectStoreFileSystem, "_token", lambda *_: ""))


def anothers_create_counts_as_ones_own() -> AbstractContextManager[None]:
    """A writer that finds the name taken believes that its own earlier try took it (P17)."""
    create = ObjectStoreFileSystem.create

    def won(self: ObjectStoreFileSystem, path: str, data: bytes) -> CreateResult:
        create(self, path, data)
        return CreateResult.CREATED

    return _with(patch.object(ObjectStoreFileSystem, "create", won))


def create_overwrites() -> AbstractContextManager[None]:
    """A create is a plain put (P17)."""

    def put(self: ObjectStoreFileSystem, path: str, data: bytes) -> CreateResult:
        self.write(path, data)
        return CreateResult.CREATED

    return _with(patch.object(ObjectStoreFileSystem, "create", put))


def a_record_in_doubt_is_not_read_back() -> AbstractContextManager[None]:
    """A create that raised counts as not done, so the driver goes on without it (P17)."""

    def record(self: Recorder, number: int, data: bytes) -> Recorded:
        try:
            created = self._log.append(number, data) is CreateResult.CREATED
        except StorageError as error:
            self.failure = str(error)
            return Recorded.FAILED
        return Recorded.WON if created else Recorded.FENCED

    # A checkpoint whose record failed is deleted, as on a store that never acts late.
    return _with(
        patch.object(Recorder, "record", record),
        patch.object(ObjectStoreFileSystem, "acts_late", False),
    )


def subsumed_before_the_record() -> AbstractContextManager[None]:
    """Older checkpoints are deleted before the record that no longer names them is won (P17)."""
    append = JobLogWriter.append

    def deleted(self: JobLogWriter, record: JobRecord) -> Any:
        kept = {known.path for known in record.checkpoints}
        for known in self.newest.checkpoints:
            if known.path not in kept:
                self._log._fs.delete(known.path)
        return append(self, record)

    return _with(patch.object(JobLogWriter, "append", deleted))


STORE_MUTANTS = [
    StoreMutant(
        variant=commit_without_the_lock,
        kind="PostgresTable",
        says=("is there twice",),
        known_seed=648,
    ),
    StoreMutant(
        variant=commit_without_looking_in_the_ledger,
        kind="PostgresTable",
        says=(
            "nothing is lost, but the job says",
            "is there twice",
        ),
        known_seed=3,
    ),
    StoreMutant(
        variant=ledger_in_another_transaction,
        kind="PostgresTable",
        says=(
            "nothing is lost, but the job says",
            "is there twice",
        ),
        known_seed=8,
    ),
    StoreMutant(
        variant=a_lost_answer_to_commit_counts_as_not_committed,
        kind="PostgresTable",
        says=(
            "nothing is lost, but the job says",
            "is there twice",
        ),
        known_seed=2,
    ),
    StoreMutant(
        variant=clean_leaves_the_sessions_of_dead_attempts,
        kind="PostgresTable",
        says=("of dead attempts outlive clean",),
        known_seed=1,
    ),
    StoreMutant(
        variant=every_writer_counts,
        kind="PostgresTable",
        says=(
            "is there twice",
            "is visible, but no checkpoint that contains it has completed",
        ),
        known_seed=1,
    ),
    StoreMutant(
        variant=staged_rows_are_not_counted,
        kind="PostgresTable",
        says=("committed rows are not visible",),
        known_seed=304,
    ),
    StoreMutant(
        variant=a_server_that_went_back_is_not_noticed,
        kind="PostgresTable",
        says=("records are missing",),
        known_seed=216,
    ),
    StoreMutant(
        variant=clean_does_not_wait_for_sessions_to_end,
        kind="PostgresTable",
        says=("of dead attempts outlive clean",),
        known_seed=0,
    ),
    StoreMutant(
        variant=clean_drops_what_is_pending,
        kind="PostgresTable",
        says=("nothing is lost, but the job says",),
        known_seed=22,
    ),
    StoreMutant(
        variant=iceberg_commits_without_looking_for_the_epoch,
        kind="IcebergTable",
        says=("is there twice",),
        known_seed=3,
    ),
    StoreMutant(
        variant=iceberg_commits_whatever_the_table_is_now,
        kind="IcebergTable",
        says=("committed rows are not visible",),
        known_seed=154,
    ),
    StoreMutant(
        variant=iceberg_takes_a_conflict_for_success,
        kind="IcebergTable",
        says=("committed rows are not visible",),
        known_seed=0,
    ),
    StoreMutant(
        variant=a_table_that_was_rolled_back_is_not_noticed,
        kind="IcebergTable",
        says=("records are missing",),
        known_seed=3,
    ),
    StoreMutant(
        variant=delta_does_not_look_at_its_transaction,
        kind="DeltaTable",
        says=("is there twice",),
        known_seed=4,
    ),
    StoreMutant(
        variant=delta_takes_a_conflict_for_success,
        kind="DeltaTable",
        says=("committed rows are not visible",),
        known_seed=3,
    ),
    StoreMutant(
        variant=delta_does_not_sync_its_log,
        kind="DeltaTable",
        says=("committed rows are not visible",),
        known_seed=5,
    ),
    StoreMutant(
        variant=kafka_does_not_ask_its_ledger,
        kind="KafkaTopic",
        says=("is there twice",),
        known_seed=15,
    ),
    StoreMutant(
        variant=kafka_takes_the_answer_for_the_commit,
        kind="KafkaTopic",
        says=("committed rows are not visible",),
        known_seed=20,
    ),
    StoreMutant(
        variant=kafka_writes_beside_what_hangs,
        kind="KafkaTopic",
        says=("is there twice",),
        known_seed=4,
    ),
    StoreMutant(
        variant=kafka_does_not_wait_for_its_ledger,
        kind="KafkaTopic",
        says=("is there twice",),
        known_seed=18,
    ),
    StoreMutant(
        variant=kafka_fences_nobody,
        kind="KafkaTopic",
        says=("is there twice",),
        known_seed=268,
    ),
    StoreMutant(
        variant=kafka_enters_the_epoch_in_another_transaction,
        kind="KafkaTopic",
        says=("is there twice",),
        known_seed=0,
    ),
    StoreMutant(
        variant=kafka_publishes_again_without_asking,
        kind="KafkaTopic",
        says=("is there twice",),
        known_seed=36,
    ),
    StoreMutant(
        variant=a_cluster_that_was_restored_is_not_noticed,
        kind="KafkaTopic",
        says=("records are missing",),
        known_seed=21,
    ),
    StoreMutant(
        variant=the_repair_aborts_whatever_hangs,
        kind="KafkaTopic",
        says=("is there twice",),
        known_seed=3,
    ),
    StoreMutant(
        variant=kafka_entries_have_the_ends_of_their_own_rows_only,
        kind="KafkaTopic",
        says=("up to the ends in the ledger",),
        known_seed=1,
    ),
    StoreMutant(
        variant=the_ledger_is_written_before_the_files_are_durable,
        kind="Files",
        says=("committed rows are not visible",),
        known_seed=3,
    ),
    StoreMutant(
        variant=the_ledger_is_written_before_the_files_are_renamed,
        kind="Files",
        says=("committed rows are not visible",),
        known_seed=22,
    ),
    StoreMutant(
        variant=files_get_their_names_without_a_mark,
        kind="Files",
        says=("checkpoint damaged: a job starts over unknown rows",),
        known_seed=1,
    ),
    StoreMutant(
        variant=staged_files_are_not_synced,
        kind="Files",
        says=("nothing is lost, but the job says",),
        known_seed=105,
    ),
    StoreMutant(
        variant=a_late_driver_does_not_look_again,
        kind="ForeachBatch",
        says=("nothing is lost, but the job says",),
        known_seed=237,
    ),
    StoreMutant(
        variant=ones_own_create_counts_as_anothers,
        kind="Files",
        says=("lets two drivers create the same file",),
        known_seed=59,
    ),
    StoreMutant(
        variant=anothers_create_counts_as_ones_own,
        kind="Files",
        says=("lets two drivers create the same file",),
        known_seed=0,
    ),
    StoreMutant(
        variant=create_overwrites,
        kind="Files",
        says=("lets two drivers create the same file",),
        known_seed=0,
    ),
    StoreMutant(
        variant=a_record_in_doubt_is_not_read_back,
        kind="Files",
        says=(
            "needs it",
            "without its metadata",
        ),
        known_seed=119,
    ),
    StoreMutant(
        variant=subsumed_before_the_record,
        kind="Files",
        says=(
            "needs it",
            "without its metadata",
        ),
        known_seed=1,
    ),
]
