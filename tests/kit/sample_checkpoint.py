"""Sample checkpoints for tests of metadata and storage."""

from __future__ import annotations

from weir.core.types import (
    Committable,
    CompletedCheckpoint,
    OperatorState,
    SnapshotKind,
    StateHandle,
    TaskState,
)

JOB = "0123456789abcdef0123456789abcdef"


def checkpoint(
    checkpoint_id: int,
    external_path: str,
    *,
    kind: SnapshotKind = SnapshotKind.CHECKPOINT,
    files: tuple[StateHandle, ...] = (),
) -> CompletedCheckpoint:
    """A checkpoint of one task with one sink that has a pending committable."""
    return CompletedCheckpoint(
        job_id=JOB,
        checkpoint_id=checkpoint_id,
        kind=kind,
        timestamp_ms=1000,
        completion_timestamp_ms=1500,
        attempt=2,
        tasks=(
            TaskState(
                vertex="revenue",
                position=4,
                operators=(
                    OperatorState(operator_id="revenue", name="revenue", fully_finished=True),
                ),
                entries={"offsets/4": "v1\n{}", "commits/4": "v1\nütf"},
                files=files,
                committables=(
                    Committable(
                        sink="out", position=4, payload={"files": ["a", "b"], "rows": 3}, barrier=7
                    ),
                ),
            ),
        ),
        external_path=external_path,
    )
