"""Every exception that Weir raises, in one tree.

``WeirError`` and its subclasses are for the user: the message is one sentence that names the thing,
the place and the fix. ``InvariantError`` is for us: it means a bug in Weir, never bad input.

::

    Exception
    ├── WeirError
    │   ├── ConfigurationError           a wrong key, value or relation between values
    │   ├── InputError                   a file or a split of the input cannot be read
    │   │   └── LostInputError           rows that a job has not read are gone
    │   ├── PipelineError                the pipeline file or its graph cannot run
    │   ├── UnsupportedEnvironmentError  Java, Spark or a file system is missing or unsupported
    │   ├── StorageError                 a path cannot be used
    │   │   ├── CheckpointNotFoundError  no checkpoint at this path
    │   │   ├── CutNotFoundError         no table there, or no checkpoint in all tables, yet
    │   │   ├── CheckpointDamagedError   a file is missing or differs from its checksum
    │   │   └── LostWriteError           the data may be lost, even if a retry succeeds
    │   ├── SinkError                    a sink cannot be opened, staged to or committed to
    │   │   ├── HangingTransactionError  a broker has lost the end of a transaction
    │   │   ├── LostRowsError            rows of a completed checkpoint are gone
    │   │   └── SinkMismatchError        the target can never take these rows
    │   ├── HookError                    a master hook cannot be called
    │   ├── ListenerError                a checkpoint listener raised
    │   ├── CoordinatorError             an operator coordinator broke its contract
    │   │   └── CoordinatorStateError    a coordinator's checkpointed state cannot be restored
    │   ├── OperatorStateError           a Python operator misused its state
    │   ├── OperatorError                an operator raised between two batches, or at its end
    │   ├── JobError
    │   │   ├── JobNotFoundError         no job with this id or name
    │   │   ├── JobAlreadyRunningError   a live driver holds the job
    │   │   ├── JobFencedError           a newer attempt holds the job; this driver must stop
    │   │   ├── JobEndedError            stopped, cancelled or finished: not resumed
    │   │   ├── JobFailedError           the job failed for good
    │   │   └── DuplicatesError          continuing would commit rows twice
    │   └── RestError                    the REST server failed, or refused a request
    └── InvariantError                   a law of the protocol does not hold: a bug in Weir
"""

from __future__ import annotations


class WeirError(Exception):
    """Something that the user can fix. The message says how."""


class ConfigurationError(WeirError):
    """A configuration key is unknown, its value is wrong, or it contradicts another key."""


class PipelineError(WeirError):
    """The pipeline file cannot be loaded, or its graph cannot be run."""


class UnsupportedEnvironmentError(WeirError):
    """Java or Spark is missing or unsupported, or a file system lacks what Weir needs."""


class InputError(WeirError):
    """A file or a split of the input cannot be read: never an outage of Weir's own storage."""


class LostInputError(InputError):
    """Rows of an input that a job has not read are gone: a retry cannot help."""


class StorageError(WeirError):
    """A path cannot be read, written or used for its purpose."""


class CheckpointNotFoundError(StorageError):
    """There is no checkpoint or savepoint at the path."""


class CutNotFoundError(StorageError):
    """A table does not exist, or no checkpoint is visible in all tables; both may come."""


class CheckpointDamagedError(StorageError):
    """A file of a checkpoint is missing or differs from its recorded size or checksum.

    ``path`` is the checkpoint's directory and ``file`` the damaged file below it.
    """

    def __init__(self, message: str, *, path: str, file: str) -> None:
        super().__init__(message)
        self.path = path
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args[0], {"path": self.path, "file": self.file})


class LostWriteError(StorageError):
    """Written data is lost, or may be.

    The common case is a failed sync: the system reports a lost write once, and the next sync of the
    same file succeeds without the data. So a caller that gets this error never syncs the file
    again: it rewrites the file, or the attempt fails.
    """


class SinkError(WeirError):
    """A sink cannot be opened, staged to or committed to."""


class HangingTransactionError(SinkError):
    """A transaction in Kafka will never end by itself: abort it before more is written."""


class LostRowsError(SinkError):
    """Rows of a completed checkpoint are gone: staged rows, or rows that a target once showed."""


class SinkMismatchError(SinkError):
    """The rows do not fit the target's schema, partitions or rules: a retry cannot help."""


class HookError(WeirError):
    """A master hook cannot be called."""


class ListenerError(WeirError):
    """A checkpoint listener raised."""


class CoordinatorError(WeirError):
    """An operator coordinator sent or returned something that its contract does not allow."""


class CoordinatorStateError(CoordinatorError):
    """A coordinator's checkpointed state cannot be restored: a retry cannot help."""


class OperatorStateError(WeirError):
    """A Python operator asks for state, or writes state, in a way that cannot be checkpointed."""


class OperatorError(WeirError):
    """A Python operator raised in its snapshot or at its end (MISSION B6, E5).

    ``operator`` is its id.
    """

    def __init__(self, message: str, *, operator: str) -> None:
        super().__init__(message)
        self.operator = operator

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args[0], {"operator": self.operator})


class JobError(WeirError):
    """A request about a job cannot be met."""


class JobNotFoundError(JobError):
    """No job with this id or name is known here."""


class JobAlreadyRunningError(JobError):
    """A live driver holds the job (PROTOCOL P20)."""


class JobFencedError(JobError):
    """A newer attempt holds the job, so this driver must stop and touch no file (PROTOCOL P17)."""


class JobEndedError(JobError):
    """The job was stopped, cancelled or finished; running it again is refused (PROTOCOL P20)."""


class JobFailedError(JobError):
    """The job failed and its restart strategy allows no further attempt."""


class DuplicatesError(JobError):
    """An older checkpoint is refused because a sink has committed past it (PROTOCOL P21)."""


class RestError(WeirError):
    """The REST server cannot start (its port is taken) or be reached, or it refused a request."""


class InvariantError(Exception):
    """A law of the protocol does not hold. This is a bug in Weir, never bad input."""


def invariant(condition: object, message: str) -> None:
    """Raise ``InvariantError(message)`` unless ``condition`` holds.

    Not ``assert``, which ``-O`` removes.
    """
    if not condition:
        raise InvariantError(message)


def _rebuild(kind: type[WeirError], message: str, attributes: dict[str, str]) -> WeirError:
    return kind(message, **attributes)
