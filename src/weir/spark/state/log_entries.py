"""The entries of Spark's logs, decoded, edited and encoded in one place.

An entry of the offset log is a version line, a line of metadata as JSON, and a line for each
source's offset. An entry of the commit log, or of an operator's metadata, is a version line and
JSON. The types here have the fields that Weir reads. An edited entry keeps all others, and their
order, as Spark wrote them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec

from weir.core.types import Count
from weir.spark.session.settings import SHUFFLE_PARTITIONS
from weir.storage.records import decoded

_Number = Annotated[str, msgspec.Meta(pattern=r"\A(?:0|[1-9][0-9]{0,8})\Z")]
_UniqueId = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-zA-Z-]{1,36}\Z")]

#: The ids of state, by operator, partition and store.
StateIds = dict[_Number, list[list[_UniqueId]]]


class QueryMetadata(msgspec.Struct):
    """What Weir reads from a query's ``metadata``."""

    id: str


# -- the commit log


class CommitEntry(msgspec.Struct):
    """What Weir reads from a commit-log entry."""

    #: The next batch's watermark; 0 before any event time is known.
    next_watermark_ms: Count | None = msgspec.field(name="nextBatchWatermarkMs", default=None)
    state_ids: StateIds | None = msgspec.field(name="stateUniqueIds", default=None)

    @property
    def is_stateful(self) -> bool:
        """Whether the query has state, and so may have windows or timers to fire."""
        return bool(self.state_ids)


def decode_commit(entry: str) -> CommitEntry:
    """Decode a commit-log entry. Raises ``ValueError``."""
    return decoded(entry.partition("\n")[2], CommitEntry)


def edited_commit(
    entry: str, *, next_watermark_ms: int | None = None, state_ids: StateIds | None = None
) -> str:
    """A commit-log entry with another watermark, or the ids of other state (none if empty).

    Raises ``ValueError`` if the entry cannot be decoded.
    """
    version, _, text = entry.partition("\n")
    changes: dict[str, object] = {}
    if next_watermark_ms is not None:
        changes["nextBatchWatermarkMs"] = next_watermark_ms
    if state_ids is not None:
        changes["stateUniqueIds"] = state_ids or None
    return f"{version}\n{_edited(text, changes)}"


# -- the offset log


class BatchMetadata(msgspec.Struct):
    """What Weir reads from the metadata in an offset-log entry."""

    watermark_ms: Count | None = msgspec.field(name="batchWatermarkMs", default=None)
    #: Settings that a restarted query keeps, whatever its session says.
    conf: dict[str, str] = {}


@dataclass(frozen=True, kw_only=True)
class OffsetEntry:
    """An entry of the offset log."""

    version: str
    metadata: BatchMetadata
    #: The metadata as Spark wrote it.
    text: str
    #: The offset of each source, as it wrote it.
    offsets: tuple[str, ...]

    def encode(self) -> str:
        """The entry as Spark reads it."""
        return "\n".join((self.version, self.text, *self.offsets))

    def with_watermark(self, watermark_ms: int) -> OffsetEntry:
        """The entry of a batch with another watermark."""
        return self._edited({"batchWatermarkMs": watermark_ms})

    def with_state_partitions(self, partitions: int) -> OffsetEntry:
        """The entry of a query with another number of state partitions."""
        return self._edited({"conf": self.metadata.conf | {SHUFFLE_PARTITIONS: str(partitions)}})

    def _edited(self, changes: Mapping[str, object]) -> OffsetEntry:
        text = _edited(self.text, changes)
        return replace(self, text=text, metadata=decoded(text, BatchMetadata))


def decode_offsets(entry: str) -> OffsetEntry:
    """Decode an offset-log entry. Raises ``ValueError``."""
    version, text, *offsets = [*entry.split("\n"), ""]
    return OffsetEntry(
        version=version,
        metadata=decoded(text, BatchMetadata),
        text=text,
        offsets=tuple(offsets[:-1]),
    )


class _LogOffset(msgspec.Struct, forbid_unknown_fields=True):
    number: Count = msgspec.field(name="logOffset")


def log_offset(offset: str) -> int | None:
    """The ``logOffset`` of a file source's offset; None for other sources."""
    try:
        return decoded(offset, _LogOffset).number
    except ValueError:
        return None


# -- metadata of stateful operators


class OperatorInfo(msgspec.Struct):
    """Which operator it is."""

    number: Count = msgspec.field(name="operatorId")
    #: Spark's name for its kind, such as ``stateStoreSave``.
    name: str = msgspec.field(name="operatorName", default="")


class StoreInfo(msgspec.Struct):
    """One of its stores."""

    schemas: list[str] = msgspec.field(name="stateSchemaFilePaths", default=[])


class StateVariable(msgspec.Struct):
    """A state variable of ``transformWithState``."""

    name: str = msgspec.field(name="stateName")


class OperatorProperties(msgspec.Struct):
    """What ``transformWithState`` keeps about itself; other operators keep other things."""

    variables: list[StateVariable] | None = msgspec.field(name="stateVariables", default=None)
    time_mode: str = msgspec.field(name="timeMode", default="NoTime")


class OperatorMetadata(msgspec.Struct):
    """What Weir reads from the metadata of a stateful operator."""

    operator: OperatorInfo = msgspec.field(name="operatorInfo")
    stores: list[StoreInfo] = msgspec.field(name="stateStoreInfo", default=[])
    properties_json: str | None = msgspec.field(name="operatorPropertiesJson", default=None)

    @property
    def name(self) -> str:
        """Spark's name for the operator's kind."""
        return self.operator.name

    @property
    def properties(self) -> OperatorProperties:
        """Its properties. Raises ``ValueError``."""
        return decoded(self.properties_json or "{}", OperatorProperties)


def decode_operator(entry: str) -> OperatorMetadata:
    """Decode an operator's metadata. Raises ``ValueError``."""
    return decoded(entry.partition("\n")[2], OperatorMetadata)


def edited_operator(entry: str, *, number: int, schemas: Sequence[Sequence[str]]) -> str:
    """An operator's metadata with another number, and by store the paths of its schemas.

    Stores without schemas stay as they are. Raises ``ValueError`` if it cannot be decoded.
    """
    version, _, text = entry.partition("\n")
    known = decoded(text, _OperatorFields)
    changes: dict[str, object] = {
        "operatorInfo": msgspec.Raw(_edited(known.operator, {"operatorId": number}))
    }
    if known.stores:
        changes["stateStoreInfo"] = [
            msgspec.Raw(_edited(store, {"stateSchemaFilePaths": paths} if paths else {}))
            for store, paths in zip(known.stores, schemas, strict=True)
        ]
    return f"{version}\n{_edited(text, changes)}"


class _OperatorFields(msgspec.Struct):
    operator: msgspec.Raw = msgspec.field(name="operatorInfo")
    stores: list[msgspec.Raw] = msgspec.field(name="stateStoreInfo", default=[])


def _edited(text: str | msgspec.Raw, changes: Mapping[str, object]) -> str:
    """A JSON object with other values of some fields; without those that are None now."""
    fields = decoded(text if isinstance(text, str) else bytes(text), dict[str, msgspec.Raw])
    edited: dict[str, object] = {**fields, **changes}
    kept = {name: value for name, value in edited.items() if value is not None}
    return msgspec.json.encode(kept).decode()
