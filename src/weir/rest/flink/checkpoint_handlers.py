"""Handlers of the endpoints of checkpoints and savepoints."""

from __future__ import annotations

from starlette.exceptions import HTTPException

from weir.core.types import CompletedCheckpoint
from weir.errors import StorageError
from weir.rest.flink import checkpoint_answers
from weir.rest.handling.guard import shortened
from weir.rest.handling.serving import Serving, beside, normalized, serves
from weir.rest.schema import checkpoints
from weir.rest.schema.base import Operation, Triggered
from weir.rest.schema.failure_cause import FailureCause, Outcome
from weir.runtime.concurrency import in_background
from weir.storage.paths import is_same
from weir.storage.snapshots import Snapshots, snapshot_directory

#: Kinds of operations.
_CHECKPOINT, _SAVEPOINT, _DISPOSAL = "checkpoint", "savepoint", "savepoint disposal"


@serves(checkpoints.CHECKPOINT_SUBTASKS)
async def _checkpoint_subtasks(
    server: Serving, job_id: str, checkpoint_id: str, vertex: str
) -> checkpoints.SubtasksInfo:
    stats = await server.checkpoint(job_id, checkpoint_id)
    task = checkpoint_answers.find_task(stats, vertex)
    if task is None:
        raise HTTPException(
            404,
            f"Checkpoint {checkpoint_id} of job {job_id} has no vertex {shortened(vertex)}.",
        )
    return checkpoint_answers.subtasks_info(stats, task)


@serves(checkpoints.TRIGGER_CHECKPOINT)
async def _trigger_checkpoint(
    server: Serving, job_id: str, body: checkpoints.CheckpointRequest
) -> Triggered:
    await server.view(job_id)
    kind = body.checkpoint_type
    return server.trigger(_CHECKPOINT, body, lambda: server.gateway.trigger_checkpoint(kind))


@serves(checkpoints.TRIGGER_SAVEPOINT)
async def _trigger_savepoint(
    server: Serving, job_id: str, body: checkpoints.SavepointRequest
) -> Triggered:
    """Take a savepoint; with ``cancel-job``, no batch comes after it (``flink cancel -s``)."""
    await server.view(job_id)
    target = normalized(body.target_directory)
    if body.cancel_job:
        return server.trigger(
            _SAVEPOINT,
            body,
            lambda: server.gateway.stop_with_savepoint(target, drain=False),
            ends_job=True,
        )
    return server.trigger(_SAVEPOINT, body, lambda: server.gateway.trigger_savepoint(target))


@serves(checkpoints.STOP)
async def _stop_with_savepoint(
    server: Serving, job_id: str, body: checkpoints.StopRequest
) -> Triggered:
    await server.view(job_id)
    target, drain = normalized(body.target_directory), body.drain
    return server.trigger(
        _SAVEPOINT,
        body,
        lambda: server.gateway.stop_with_savepoint(target, drain=drain),
        ends_job=True,
    )


@serves(checkpoints.DISPOSE_SAVEPOINT)
async def _dispose_savepoint(server: Serving, body: checkpoints.DisposalRequest) -> Triggered:
    """Dispose of a savepoint, unless this job still needs it.

    Whether other jobs need it cannot be known from its path (see ``weir.readers.savepoint``).
    """
    try:
        directory = await beside(lambda: snapshot_directory(body.savepoint_path))
    except StorageError as error:
        raise HTTPException(400, str(error)) from error
    if await _is_restore_point(server, directory):
        raise HTTPException(
            409,
            f"This job was restored from {directory} and has not completed a checkpoint of its"
            " own yet: dispose of it after it has.",
        )
    storage = Snapshots(server.file_systems)
    return server.trigger(
        _DISPOSAL,
        body,
        lambda: in_background(lambda: storage.dispose_savepoint(directory)),
    )


@serves(checkpoints.DISPOSAL_OUTCOME)
async def _disposal_outcome(server: Serving, trigger_id: str) -> Operation[Outcome]:
    return server.outcome(
        _DISPOSAL, trigger_id, lambda _: Outcome(), lambda cause: Outcome(failure_cause=cause)
    )


@serves(checkpoints.CHECKPOINT_OUTCOME)
async def _checkpoint_outcome(
    server: Serving, job_id: str, trigger_id: str
) -> Operation[checkpoints.CheckpointTaken]:
    await server.view(job_id)

    def taken(found: CompletedCheckpoint) -> checkpoints.CheckpointTaken:
        return checkpoints.CheckpointTaken(checkpoint_id=found.checkpoint_id)

    def failed(cause: FailureCause) -> checkpoints.CheckpointTaken:
        return checkpoints.CheckpointTaken(failure_cause=cause)

    return server.outcome(_CHECKPOINT, trigger_id, taken, failed)


@serves(checkpoints.SAVEPOINT_OUTCOME)
async def _savepoint_outcome(
    server: Serving, job_id: str, trigger_id: str
) -> Operation[checkpoints.SavepointTaken]:
    await server.view(job_id)

    def taken(found: CompletedCheckpoint) -> checkpoints.SavepointTaken:
        return checkpoints.SavepointTaken(location=found.external_path)

    def failed(cause: FailureCause) -> checkpoints.SavepointTaken:
        return checkpoints.SavepointTaken(failure_cause=cause)

    return server.outcome(_SAVEPOINT, trigger_id, taken, failed)


async def _is_restore_point(server: Serving, directory: str) -> bool:
    """Whether a failover would restore this snapshot: nothing has completed since it was."""
    checkpoints = (await server.newest()).checkpoints
    restored, completed = checkpoints.latest_restored, checkpoints.latest_completed
    if restored is None:
        return False
    path = restored.external_path
    if not await beside(lambda: is_same(path, directory)):
        return False
    return completed is None or completed.trigger_timestamp_ms < restored.restore_timestamp_ms
