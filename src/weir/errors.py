"""Every exception that Weir raises, in one tree.

``WeirError`` and its children are for the user: the message is one sentence that names the thing,
the place and the way out. ``InvariantError`` is for us: it means a bug in Weir, never bad input.

::

    Exception
    ├── WeirError
    │   ├── ConfigurationError           a wrong key, value or relation between values
    │   ├── PipelineError                the pipeline file or its graph cannot run
    │   ├── UnsupportedEnvironmentError  Java, Spark or a file system is missing or too old
    │   ├── StorageError                 a path cannot be used
    │   │   ├── CheckpointNotFoundError  no checkpoint or savepoint at this path
    │   │   ├── CheckpointDamagedError   a file of it is missing or differs from its checksum
    │   │   └── LostWriteError           what was written may be lost, whatever a second try says
    │   ├── SinkError                    a sink cannot be opened, staged to or committed to
    │   │   ├── LostRowsError            rows of a completed checkpoint are not where they were staged
    │   │   └── SinkMismatchError        what is to be written can never become part of the target
    │   ├── HookError                    a master hook cannot be called
    │   ├── ListenerError                a checkpoint listener has raised
    │   ├── CoordinatorError             an operator coordinator does what it may not
    │   │   └── CoordinatorStateError    what a checkpoint has of a coordinator cannot be gone on from
    │   ├── OperatorStateError           the state of a Python operator is used as it may not be
    │   ├── JobError
    │   │   ├── JobNotFoundError         no job of this id or name
    │   │   ├── JobAlreadyRunningError   a live driver holds the job
    │   │   ├── JobFencedError           a newer attempt holds the job; this driver must stop
    │   │   ├── JobEndedError            the job was stopped, cancelled or finished and is not resumed
    │   │   ├── JobFailedError           the job failed for good
    │   │   └── DuplicatesError          going on would commit rows twice
    │   └── RestError                    the REST server cannot start, or cannot be reached
    └── InvariantError                   a law of the protocol does not hold: a bug in Weir
"""

from __future__ import annotations


class WeirError(Exception):
    """Something that the user can put right. The message says how."""


class ConfigurationError(WeirError):
    """A configuration key is unknown, or its value or its relation to others is wrong."""


class PipelineError(WeirError):
    """The pipeline file cannot be loaded, or its graph cannot be run."""


class UnsupportedEnvironmentError(WeirError):
    """Java or Spark is missing or of an unsupported version, or a file system lacks what Weir
    needs."""


class StorageError(WeirError):
    """A path cannot be read, written or used for what it is meant for."""


class CheckpointNotFoundError(StorageError):
    """There is no checkpoint or savepoint at the path."""


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
    """What was written is lost, or may be.

    A sync that failed is the common case: the system reports a lost write once, and the next sync
    of the same file succeeds without it. So whoever gets this error never syncs the file again, but
    writes it anew, or lets the attempt fail.
    """


class SinkError(WeirError):
    """A sink cannot be opened, staged to or committed to."""


class LostRowsError(SinkError):
    """Rows that a completed checkpoint has staged are gone or cut short, so its commit cannot be
    made whole."""


class SinkMismatchError(SinkError):
    """The rows and the target do not go together, in schema, partitions or rules: trying again
    cannot help."""


class HookError(WeirError):
    """A master hook cannot be called."""


class ListenerError(WeirError):
    """A checkpoint listener has raised."""


class CoordinatorError(WeirError):
    """An operator coordinator sends or returns something that cannot be."""


class CoordinatorStateError(CoordinatorError):
    """What a checkpoint has of a coordinator cannot be gone on from: trying again cannot help."""


class OperatorStateError(WeirError):
    """A Python operator asks for a state, or writes to one, in a way that cannot be kept."""


class JobError(WeirError):
    """A request about a job cannot be met."""


class JobNotFoundError(JobError):
    """No job of this id or name is known at this place."""


class JobAlreadyRunningError(JobError):
    """A live driver holds the job (PROTOCOL P20)."""


class JobFencedError(JobError):
    """A newer attempt holds the job, so this driver must stop and touch no file (PROTOCOL P17)."""


class JobEndedError(JobError):
    """The job was stopped, cancelled or finished and is not resumed by running it again
    (PROTOCOL P20)."""


class JobFailedError(JobError):
    """The job failed and its restart strategy gives it no further attempt."""


class DuplicatesError(JobError):
    """An older checkpoint cannot be used, since a sink has committed beyond it (PROTOCOL P21)."""


class RestError(WeirError):
    """The REST server cannot start (its port is taken), or cannot be reached, or refused a
    request."""


class InvariantError(Exception):
    """A law of the protocol does not hold. This is a bug in Weir, never bad input."""


def invariant(condition: object, message: str) -> None:
    """Raise ``InvariantError(message)`` unless ``condition`` holds (``assert`` would vanish under
    ``-O``)."""
    if not condition:
        raise InvariantError(message)


def _rebuild(kind: type[WeirError], message: str, attributes: dict[str, str]) -> WeirError:
    return kind(message, **attributes)
