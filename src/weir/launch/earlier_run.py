"""The pipeline compared with what its last run left, before a JVM starts.

``weir run`` checks the checkpoint from which the job would resume, and ``weir plan`` the newest one
that it finds without Spark. What is wrong with steps, sinks and channels is found here, and what a
sink or one of Weir's own sources reads or writes now; only what Spark keeps of a changed chain, and
what its sources read, must wait for Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

from weir.config import Configuration
from weir.config.options import CHECKPOINT_DIR, DEFAULT_PARALLELISM, IGNORE_UNCLAIMED_STATE
from weir.core.graph import Vertex
from weir.core.types import CompletedCheckpoint, OperatorId, OperatorState
from weir.definition import JobDefinition, declared_operators
from weir.durable.changes import Changes
from weir.durable.state_mapping import StateAssembler, StateMapping
from weir.errors import InvariantError, StorageError, UnsupportedEnvironmentError
from weir.spark.releases import check_checkpoint
from weir.spark.session.settings import SHUFFLE_PARTITIONS
from weir.spark.state.assembly import SparkStateAssembler
from weir.spark.state.rescale import check_rescaling
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.file_systems import FileSystems
from weir.storage.job_log import JobLog, JobRecord, RecordStatus
from weir.storage.job_names import JobNames
from weir.storage.paths import needs_spark

_log = logging.getLogger(__name__)

#: Raises ``JobError`` unless the state of the checkpoint has its place in the pipeline,
#: ``PipelineError`` or ``UnsupportedEnvironmentError`` if this Spark cannot restore it.
Fits = Callable[[CompletedCheckpoint], None]
#: The keys that ``check_last_run`` reads. They have no relations among them.
_READ = (
    *(CHECKPOINT_DIR.key, IGNORE_UNCLAIMED_STATE.key),
    *(DEFAULT_PARALLELISM.key, SHUFFLE_PARTITIONS),
)


def state_mapping(
    job: JobDefinition, configuration: Configuration, assembler: StateAssembler
) -> StateMapping:
    """The parts of a pipeline that checkpointed state is matched with."""
    vertices = job.vertices()
    return StateMapping(
        vertices={vertex.name: vertex.operators for vertex in vertices},
        inputs={vertex.name: vertex.inputs for vertex in vertices},
        coordinated=frozenset(
            name for name, step in job.operators.items() if step.coordinator is not None
        ),
        allow_non_restored_state=configuration.value(IGNORE_UNCLAIMED_STATE),
        assembler=assembler,
    )


def fits(job: JobDefinition, configuration: Configuration) -> Fits:
    """Whether a checkpoint fits the pipeline and this Spark, as far as is known without a JVM."""
    mapping = state_mapping(job, configuration, SparkStateAssembler({}, _no_layouts))
    vertices = [with_parallelism(vertex, configuration) for vertex in job.vertices()]

    def check(checkpoint: CompletedCheckpoint) -> None:
        check_checkpoint(checkpoint)
        mapping.check(checkpoint)
        for vertex in vertices:
            state = checkpoint.task(vertex.name)
            if state is not None and _ids(state.operators) == _ids(vertex.operators):
                check_rescaling(vertex, state)

    return check


def with_parallelism(vertex: Vertex, configuration: Configuration) -> Vertex:
    """The vertex with the number of state partitions that its steps or the configuration set."""
    spark = configuration.get(SHUFFLE_PARTITIONS, "")
    # Any other text is Spark's to refuse.
    configured = configuration.value(DEFAULT_PARALLELISM) or (
        int(spark) if spark.isdecimal() else None
    )
    return replace(vertex, parallelism=vertex.parallelism or configured)


def _ids(operators: Sequence[OperatorState]) -> set[OperatorId]:
    return {operator.operator_id for operator in operators}


def check_last_run(job: JobDefinition) -> CompletedCheckpoint | None:
    """Raise ``JobError`` if the job would go on from a checkpoint or savepoint that does not fit.

    Or if it has finished, and would now read or write something else. Returns from what the job
    would go on; None if it would not, or nothing was found. Looks where the job's own configuration
    says, writes nothing, and ignores what it cannot read.
    """
    configuration = Configuration.given(None, job.conf)
    given = Configuration({key: configuration[key] for key in _READ if key in configuration})
    directory = given.value(CHECKPOINT_DIR)
    if needs_spark(directory):
        return None
    try:
        found = _last_checkpoint(job.name, directory)
    except (StorageError, UnsupportedEnvironmentError):
        return None
    if found is None:
        return None
    record, checkpoint = found
    changes = Changes(operators=declared_operators(job), accepted=frozenset(), note=_log.debug)
    if record.status is RecordStatus.FINISHED:
        changes.check_finished(checkpoint, {})
        return None
    if checkpoint.drained:
        return None
    fits(job, given)(checkpoint)
    changes.check_start(checkpoint, record.job_id)
    return checkpoint


def resumed_from(record: JobRecord, storage: CheckpointStorage) -> CompletedCheckpoint | None:
    """The checkpoint or savepoint from which the newest record says that the job resumes.

    Of a job that was stopped, the savepoint of the stop. None if there is none. Raises
    ``StorageError`` if it cannot be read.
    """
    if record.savepoint is not None:
        return storage.read(record.savepoint)
    if record.checkpoints:
        newest = record.checkpoints[-1]
        return storage.read(newest.path, expected_checksum=newest.checksum)
    if record.restored_from is not None:
        return storage.read(record.restored_from, expected_checksum=record.restored_checksum)
    return None


def _last_checkpoint(name: str, directory: str) -> tuple[JobRecord, CompletedCheckpoint] | None:
    file_systems = FileSystems()
    known = JobNames(file_systems(directory), directory).lookup(name)
    if known is None:
        return None
    storage = CheckpointStorage(fs=file_systems, base_directory=directory, job_id=known.job_id)
    log = JobLog(file_systems(directory), storage.log_directory, job_id=known.job_id)
    record = log.newest()
    ended = (RecordStatus.FINISHED, RecordStatus.STOPPED)
    if record is None or not (record.status.may_be_run or record.status in ended):
        return None
    checkpoint = resumed_from(record, storage)
    return None if checkpoint is None else (record, checkpoint)


def _no_layouts() -> NoReturn:
    raise InvariantError("a check without Spark asked for Spark's plans")
