"""The log of one Delta table, read for Weir's commits: which version shows which checkpoint.

The log is read from its newest entry backwards, one file per entry, and only as far as needed: most
readers want the newest few of thousands. delta-rs gives the newest version; the entries' files are
then read directly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import unquote

import msgspec

from weir.core.types import AbsolutePath, JobId, OperatorId, Timestamp
from weir.errors import CutNotFoundError, StorageError
from weir.sinks.base import Commit, SinkContext
from weir.sinks.commit_log import CommitLog, Entry
from weir.sinks.delta.payload import DeltaFile
from weir.sinks.staging import slug
from weir.storage.paths import as_delta_path, normalize
from weir.storage.records import converted, decoded

if TYPE_CHECKING:
    import deltalake
    from deltalake.transaction import AddAction


_CHECKPOINT_ID = "weir.checkpoint.id"


class _CommitInfo(msgspec.Struct):
    job_id: JobId = msgspec.field(name="weir.job.id")
    job_name: str = msgspec.field(name="weir.job.name")
    sink: OperatorId = msgspec.field(name="weir.sink")
    checkpoint_id: Annotated[str, msgspec.Meta(pattern=r"\A[1-9][0-9]{0,17}\Z")] = msgspec.field(
        name=_CHECKPOINT_ID
    )
    attempt: Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,18}\Z")] = msgspec.field(
        name="weir.attempt", default="0"
    )
    job_directory: str = msgspec.field(name="weir.job.directory", default="")
    joins: Literal["true", "false"] = msgspec.field(name="weir.joins", default="false")
    timestamp_ms: Timestamp = msgspec.field(name="timestamp", default=0)


def commit_metadata(context: SinkContext, epoch: int) -> dict[str, str]:
    """What a commit says of itself in the table's log."""
    info = _CommitInfo(
        job_id=context.job_id,
        job_name=context.job_name,
        sink=context.sink,
        checkpoint_id=str(epoch),
        attempt=str(context.attempt),
        job_directory=context.job_directory or "",
        joins="true" if context.leaves_out else "false",
    )
    fields: dict[str, str] = msgspec.to_builtins(info)
    # The table's log has a time of its own.
    del fields["timestamp"]
    return fields


class _Change(msgspec.Struct):
    changes_data: bool = msgspec.field(name="dataChange", default=True)


class _Operation(msgspec.Struct):
    #: Any writer's, so they may be anything.
    operation: Any = None
    parameters: Any = msgspec.field(name="operationParameters", default=None)


class TableLog(CommitLog):
    """The log of one Delta table as of the last ``look_again``. Each entry is read once."""

    def __init__(
        self,
        name: str,
        path: str,
        storage_options: Mapping[str, str] | None,
        *,
        table: deltalake.DeltaTable | None = None,
    ) -> None:
        """Load the table, unless the caller passes it as ``table``.

        Raises ``CutNotFoundError`` if there is no table at the path, and ``StorageError`` if
        it cannot be read.
        """
        import deltalake
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        super().__init__(name, f"table {name!r} at {path}", normalize(path))
        #: The oldest version whose entry still exists, once ``entries`` has reached it; else 0.
        self.oldest = 0
        self._entries: dict[int, Entry] = {}
        uri, options = as_delta_path(self.root), as_dict(storage_options)
        try:
            self._table = table or deltalake.DeltaTable(uri, storage_options=options)
            self._files = PyFileSystem(DeltaStorageHandler(uri, options))
        except deltalake.exceptions.TableNotFoundError as error:
            raise CutNotFoundError(
                f"No Delta table found for {self.place}: check the path, or wait for the first"
                " checkpoint with rows, which creates it."
            ) from error
        except (deltalake.exceptions.DeltaError, OSError) as error:
            raise self._unreadable(error) from error

    def look_again(self) -> None:
        """Update the log to the newest version."""
        import deltalake

        try:
            self._table.update_incremental()
        except (deltalake.exceptions.DeltaError, OSError) as error:
            raise self._unreadable(error) from error

    def entries(self) -> Iterator[Entry]:
        """All entries, newest first, back to where the log has been cleaned up."""
        for version in range(self._table.version(), -1, -1):
            if version not in self._entries:
                try:
                    self._entries[version] = self._read(version)
                except FileNotFoundError:
                    self.oldest = version + 1
                    return
                except OSError as error:
                    raise self._unreadable(error) from error
            yield self._entries[version]

    def check_one_sink(self, job_id: str, job_name: str, sink: str) -> None:
        """Raise ``StorageError`` if another sink of the job stages below the table's root."""
        from pyarrow.fs import FileSelector, FileType

        prefix = f"weir-{job_id[:8]}-"
        own = re.compile(re.escape(prefix + slug(sink)) + r"-\d+")
        try:
            found = self._files.get_file_info(FileSelector("", recursive=False))
        except OSError as error:
            raise self._unreadable(error) from error
        for entry in found:
            name = entry.base_name
            if (
                entry.type == FileType.Directory
                and name.startswith(prefix)
                and not own.fullmatch(name)
            ):
                raise StorageError(
                    f"Several sinks of job {job_name!r} write to {self.place} ({sink!r} and the"
                    f" the sink that staged {name!r}), so no version of it belongs to a single"
                    " checkpoint: give each sink its own table."
                )

    def cleaned_up(self) -> str:
        """What to add to an error if older entries of the log are gone."""
        if not self.oldest:
            return ""
        return (
            f" (the log of {self.place} has been cleaned up before version {self.oldest}: it must"
            " reach back to the last common checkpoint, see delta.logRetentionDuration)"
        )

    def _unreadable(self, error: Exception) -> StorageError:
        return StorageError(unreadable(self.place, error))

    def _read(self, version: int) -> Entry:
        commit: Commit | None = None
        restored: int | None = None
        changes_data = False
        with self._files.open_input_file(f"_delta_log/{version:020}.json") as file:
            lines = file.read().splitlines()
        try:
            for line in filter(None, lines):
                action = decoded(line, dict[str, msgspec.Raw])
                if "commitInfo" in action:
                    commit = _commit(bytes(action["commitInfo"])) or commit
                    restored = _restored(bytes(action["commitInfo"]))
                changed = [
                    decoded(bytes(action[kind]), _Change).changes_data
                    for kind in ("add", "remove")
                    if kind in action
                ]
                changes_data = (
                    changes_data or any(changed) or "metaData" in action or "protocol" in action
                )
        except ValueError as error:
            raise self._unreadable(error) from error
        return Entry(version=version, commit=commit, changes_data=changes_data, restored=restored)


def _commit(info: bytes) -> Commit | None:
    """The commit in a ``commitInfo`` written by Weir; None for other writers, who may put anything.

    Raises ``ValueError`` if it is malformed.
    """
    if _CHECKPOINT_ID not in decoded(info, dict[str, msgspec.Raw]):
        return None
    said = decoded(info, _CommitInfo)
    return Commit(
        timestamp_ms=said.timestamp_ms,
        job_id=said.job_id,
        job_name=said.job_name,
        job_directory=said.job_directory and converted(said.job_directory, AbsolutePath),
        sink=said.sink,
        checkpoint_id=int(said.checkpoint_id),
        attempt=int(said.attempt),
        joins=said.joins == "true",
    )


def _restored(info: bytes) -> int | None:
    """The version to which a ``RESTORE`` went, in the ``commitInfo`` of any writer."""
    said = decoded(info, _Operation)
    if said.operation != "RESTORE" or not isinstance(said.parameters, dict):
        return None
    version = str(said.parameters.get("version"))
    return int(version) if re.fullmatch(r"[0-9]{1,18}", version) else None


def unreadable(place: str, error: Exception) -> str:
    """What to say of a log that delta-rs, whose errors go on with its own stack, does not read."""
    said = str(error).partition("\n")[0]
    way_out = "check the table and the access to it"
    if "Json error" in said or "No table metadata" in said:
        # It was written, and perhaps read, but not synced: no commit has returned.
        way_out = (
            "look at the newest entry in its _delta_log, which a crash of its machine may have cut."
            " If it does not end with a whole line, delete it: what this job had in it is committed"
            " again"
        )
    return f"The log of {place} cannot be read ({said}): {way_out}."


def as_dict(options: Mapping[str, str] | None) -> dict[str, str] | None:
    """Storage options as a ``dict``, which delta-rs needs."""
    return None if options is None else dict(options)


def add_action(path: str, file: DeltaFile) -> AddAction:
    """The action that adds a flushed payload's file; ``path`` is below the table's root."""
    from deltalake.transaction import AddAction

    return AddAction(
        path=path,
        size=file.size,
        partition_values=file.partition or {},
        modification_time=file.modified_ms or 0,
        data_change=True,
        stats=file.statistics or "",
    )


def files_in_log(table: deltalake.DeltaTable) -> frozenset[str]:
    """The paths of all files of the table's current version."""
    return frozenset(map(unquote, table.get_add_actions().column("path").to_pylist()))


def batches_in_log(table: deltalake.DeltaTable) -> set[str]:
    """The first two parts of the paths of all files of the table's current version.

    For a file that Weir has staged: the attempt's directory and the batch's.
    """
    return {"/".join(path.split("/", 2)[:2]) for path in files_in_log(table)}
