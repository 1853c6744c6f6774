"""Checks a query's state in a snapshot, before any of it is written to a directory for Spark.

The format of names and numbers in the metadata is checked when it is decoded
(``weir/storage/metadata.py``). These checks concern what they and Spark's own log entries mean to a
query that starts on them:

- The logs end with the batch of the snapshot. An entry above it would be a batch that Spark still
  has to run, with offsets and file lists written by somebody else.
- Spark instantiates the classes that an offset-log entry names: it may name Weir's state store and
  no other class.
- Weir's own entries and the in-flight segments refer only to files of the snapshot.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec

from weir.core.types import NAME, Count, OperatorId, StateKey
from weir.errors import CheckpointDamagedError
from weir.spark.session.settings import REQUIRED
from weir.spark.state.log_entries import decode_commit, decode_offsets, log_offset
from weir.spark.state.plan_layout import PLAN_ENTRY, decode_layout
from weir.storage.metadata import METADATA_FILE, damaged
from weir.storage.records import converted, decoded
from weir.subtasks.chain import DIRECTORY, ENTRY
from weir.subtasks.held_state import KeptOperator, files_of
from weir.subtasks.messages import LayerLocation, Location

if TYPE_CHECKING:
    from weir.core.types import TaskState

#: The entry of a snapshot that holds the output watermark, in milliseconds.
WATERMARK_ENTRY = "weir-output-watermark"

_LOG_ENTRY = re.compile(r"(?P<log>offsets|commits)/(?P<batch>0|[1-9][0-9]*)")
_SOURCE_LOG = re.compile(r"sources/(?P<source>[0-9]+)/(?P<number>[0-9]+)(?:\.compact)?")
_OTHER_ENTRY = re.compile(r"metadata|sources/[0-9]+/.+|weir-[a-z-]+")
_FILES = re.compile(rf"(?:sources|state)/[0-9]+/.+|(?:{DIRECTORY}|in-flight)/.+")
_CLASS = re.compile(r"[A-Za-z_$]\.[A-Za-z_$]")


class _KeptSegment(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[StateKey]
    #: The side outputs whose rows it holds.
    tags: list[Annotated[str, msgspec.Meta(pattern=rf"\A{NAME}\Z")]] = []


def check_saved_task(state: TaskState, path: str) -> None:
    """Check that a query may start on this state, of the snapshot at ``path``.

    Raises ``CheckpointDamagedError`` if it may not.
    """
    try:
        _check_names(state)
        for key, text in state.entries.items():
            match = _LOG_ENTRY.fullmatch(key)
            if match is not None and match["log"] == "offsets":
                _check_conf(decode_offsets(text).metadata.conf)
            elif match is not None:
                decode_commit(text)
        _check_sources(state)
        kept_operators(state)
        saved_watermark_ms(state)
        keys = {handle.key for handle in state.files if handle.key.startswith("in-flight/")}
        for segment in state.in_flight:
            if not keys.issuperset(converted(segment.payload, _KeptSegment).keys):
                raise ValueError(
                    f"segment {segment.position} of channel {segment.channel!r} does not name one"
                    " of its files"
                )
    except ValueError as error:
        raise unfit(state, path, error) from error


def unfit(state: TaskState, path: str, error: ValueError) -> CheckpointDamagedError:
    """The error for an invalid state of one vertex in the snapshot at ``path``."""
    said = f"has an invalid entry for vertex {state.vertex!r} ({error})"
    return damaged(path, METADATA_FILE, said)


def kept_operators(state: TaskState) -> dict[OperatorId, KeptOperator]:
    """The snapshot's entry for Python operators. Raises ``ValueError``."""
    kept = decoded(state.entries.get(ENTRY, "{}"), dict[OperatorId, KeptOperator])
    files = {handle.key for handle in state.files}
    for name, operator in kept.items():
        for file in sorted(files_of(operator)):
            if f"{DIRECTORY}/{file}" not in files:
                raise ValueError(
                    f"operator {name!r} has its state in {file!r}, which is not one of its files"
                )
    return kept


@dataclass(frozen=True, kw_only=True)
class OperatorStateSize:
    """The size of one state of a Python operator in a snapshot."""

    operator: OperatorId
    #: ``keyed`` (values, maps, lists and timers by key), ``raw``, or ``lists``: all that belong to
    #: the subtasks.
    kind: str
    #: As ``weir inspect --operator`` shows it; empty for ``lists``.
    name: str
    #: Keys with a value, for maps and lists by key entries; None: not known, as for raw state and
    #: lists, and for keyed state that has not changed since the parallelism did.
    keys: int | None
    #: Bytes of the files that count; keys that were written again count more than once.
    size: int


def operator_state_sizes(state: TaskState) -> tuple[OperatorStateSize, ...]:
    """The sizes of all state of Python operators, by operator. Raises ``ValueError``."""
    return tuple(
        OperatorStateSize(
            operator=operator, kind=kind, name=name, keys=keys, size=sum(one.size for one in places)
        )
        for operator, kept in kept_operators(state).items()
        for kind, name, keys, places in _own_states(kept)
    )


def _own_states(
    kept: KeptOperator,
) -> Iterator[tuple[str, str, int | None, Iterable[Location | LayerLocation]]]:
    """Kind, name, number of keys, and locations of each state of one operator."""
    for name, by_subtask in sorted(kept.keyed.items()):
        newest = [layers[-1].keys for layers in by_subtask.values() if layers]
        known = [keys for keys in newest if keys is not msgspec.UNSET]
        keys = sum(known) if len(known) == len(newest) else None
        yield "keyed", name, keys, itertools.chain.from_iterable(by_subtask.values())
    for name, groups in sorted(kept.groups.items()):
        yield "raw", name, None, groups.values()
    yield "lists", "", None, kept.lists.values()


def saved_watermark_ms(state: TaskState) -> int | None:
    """The query's output watermark; None if the snapshot has none. Raises ``ValueError``."""
    text = state.entries.get(WATERMARK_ENTRY)
    return None if text is None else decoded(text, Count)


def _check_names(state: TaskState) -> None:
    for key in state.entries:
        match = _LOG_ENTRY.fullmatch(key)
        if match is None:
            known = _OTHER_ENTRY.fullmatch(key) is not None
        else:
            before = int(match["log"] == "offsets")
            known = state.position - before <= int(match["batch"]) <= state.position
        if not known:
            raise ValueError(f"the entry after batch {state.position} is missing: {key!r}")
    for handle in state.files:
        if not _FILES.fullmatch(handle.key):
            raise ValueError(f"there is no state file {handle.key!r}")


def _check_conf(conf: dict[str, str]) -> None:
    for key, value in conf.items():
        if _CLASS.search(value) and value != REQUIRED.get(key):
            raise ValueError(f"{key} is {value!r}")


def _check_sources(state: TaskState) -> None:
    """Check that no file source's log has entries beyond the source's offset.

    A file source treats every entry of its log as admitted files (PROTOCOL P3).
    """
    newest = _newest_by_directory(state)
    for key in (*state.entries, *(handle.key for handle in state.files)):
        match = _SOURCE_LOG.fullmatch(key)
        offset = None if match is None else newest.get(int(match["source"]))
        if match is not None and offset is not None and int(match["number"]) > offset:
            raise ValueError(f"{key!r} is beyond what was read, {offset}")


def _newest_by_directory(state: TaskState) -> dict[int, int | None]:
    """The newest admitted entry of each directory in ``sources/``; without those not known."""
    text = state.entries.get(f"offsets/{state.position}")
    if text is None:
        return {}
    offsets = decode_offsets(text).offsets
    layout = state.entries.get(PLAN_ENTRY)
    if layout is not None:
        directories = [place.directory for place in decode_layout(layout).inputs]
        if len(directories) != len(offsets):
            raise ValueError(f"{PLAN_ENTRY!r} does not fit offsets/{state.position}")
    elif len(set(offsets)) == len(offsets):
        directories = list(range(len(offsets)))
    else:
        # Perhaps a source in several places, which has one directory.
        return {}
    return dict(zip(directories, map(log_offset, offsets), strict=True))
