"""The bodies of Flink's requests, as checked values. Unknown fields are accepted, as Flink's server does.

``FIELDS`` of each says what a body may hold; it is the way out that a refusal names.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any, ClassVar

import msgspec

from weir.core.types import CheckpointType

#: 32 hexadecimal digits, in either case.
TriggerId = Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{32}$")]

#: A path as an operating system takes it: not without end, and without a zero byte.
Path = Annotated[str, msgspec.Meta(max_length=4096, pattern="^[^\\x00]*$")]


class SavepointFormat(enum.Enum):
    """What ``flink savepoint -type`` may ask for. Weir has one format, so both are one."""

    CANONICAL = "CANONICAL"
    NATIVE = "NATIVE"


class CheckpointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``POST /jobs/:jobid/checkpoints``. An absent type is CONFIGURED; null is none of the three and refused."""

    FIELDS: ClassVar[str] = "checkpointType is CONFIGURED, FULL or INCREMENTAL"

    checkpoint_type: CheckpointType = msgspec.field(name="checkpointType", default=CheckpointType.CONFIGURED)
    trigger_id: TriggerId | None = msgspec.field(name="triggerId", default=None)


class SavepointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``POST /jobs/:jobid/savepoints``; without a directory the configured one is used."""

    FIELDS: ClassVar[str] = (
        "target-directory is a path or null, formatType CANONICAL or NATIVE, cancel-job false"
    )

    target_directory: Path | None = msgspec.field(name="target-directory", default=None)
    cancel_job: bool = msgspec.field(name="cancel-job", default=False)
    format_type: SavepointFormat | None = msgspec.field(name="formatType", default=None)
    trigger_id: TriggerId | None = msgspec.field(name="triggerId", default=None)


class DisposalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``POST /savepoint-disposal``."""

    FIELDS: ClassVar[str] = "savepoint-path is a path"

    savepoint_path: Path = msgspec.field(name="savepoint-path")
    trigger_id: TriggerId | None = msgspec.field(name="triggerId", default=None)


class CoordinatorRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``POST /jobs/:jobid/coordinators/:operator``."""

    FIELDS: ClassVar[str] = "request is an object, as the coordinator understands it"

    request: dict[str, Any]
    trigger_id: TriggerId | None = msgspec.field(name="triggerId", default=None)


class StopRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``POST /jobs/:jobid/stop``; note that the directory is spelled otherwise than in ``SavepointRequest``."""

    FIELDS: ClassVar[str] = (
        "targetDirectory is a path or null, formatType CANONICAL or NATIVE, drain true or false"
    )

    target_directory: Path | None = msgspec.field(name="targetDirectory", default=None)
    drain: bool = False
    format_type: SavepointFormat | None = msgspec.field(name="formatType", default=None)
    trigger_id: TriggerId | None = msgspec.field(name="triggerId", default=None)
