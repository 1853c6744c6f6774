"""Runs subtasks of Python operators in Spark's Python workers (``mapInArrow``).

The order for a batch (``subtasks/messages.py``) arrives as a local property of its Spark job, one
JSON text per operator. The result goes back through an accumulator, as JSON by batch and subtask: a
Spark task that runs again replaces its earlier result, and one that failed has none.

``CallFunction`` calls subtasks between two batches, or after the last one, in a Spark job of its
own: for the snapshot of a checkpoint, and to close them. Spark chooses the processes, so each of
its tasks first calls the subtasks that it finds in its process; those found nowhere are then
restored and called.

If a process dies of a signal, Spark reports what is in its file of last words (``LastWords``): the
step, the split that a source's reader was reading, and the frames that Python prints.

What operators log and print becomes lines of the process's standard error, each with the step and
the subtask. On a local master that is the driver's standard error, on a cluster the executor's.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeVar

import msgspec

from weir.core.types import OperatorId, VertexId
from weir.monitoring.log_lines import Capture, Form, as_text, pass_on, place
from weir.runtime.concurrency import SystemClock
from weir.runtime.failures import NOTE
from weir.subtasks.messages import (
    BATCH_ORDERS,
    CALLS,
    AbandonCall,
    BatchResult,
    encoded,
    received,
)
from weir.subtasks.worker import AnyStateFiles, SubtaskFunction, WorkerProcess

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.accumulators import Accumulator

#: Prefix of the local property of an operator.
PROPERTY = "weir.operator."
#: The column of key groups, the last one of a stream with ``key_by``.
KEY_GROUP = "__weir_key_group"

M = TypeVar("M")

#: (batch, subtask) -> the ``BatchResult`` as JSON.
Results = dict[tuple[int, int], str]

#: The rows of ``CallFunction``: a subtask, and its ``CallResult`` as JSON.
CALL_SCHEMA = "subtask int, result string"

#: Where Spark has a file for each worker, named like the process (``settings.CRASHES``).
_LAST_WORDS = "PYTHON_FAULTHANDLER_DIR"


class LastWords:
    """The file of this process whose text Spark reports if the process dies of a signal.

    Spark opens it again for each of its tasks, for what Python prints then (``faulthandler``), and
    deletes it at their end. In between, notes are written in front of that through a handle of its
    own, since Spark's would write over them. Without Spark's file nothing is left behind.
    """

    def __init__(self) -> None:
        self._file: TextIO | None = None
        self._step = ""

    @contextmanager
    def of(self, step: OperatorId, subtask: int) -> Iterator[None]:
        """Leave the step and the subtask behind if the process dies meanwhile."""
        self._step = f"subtask {subtask} of {step!r}"
        directory = os.environ.get(_LAST_WORDS)
        path = Path(directory or "", str(os.getpid()))
        with suppress(OSError):
            if directory is not None and path.exists():
                self._file = path.open("a", encoding="utf-8", errors="backslashreplace")
                faulthandler.enable(file=self._file)
        self.write("")
        try:
            yield
        finally:
            file, self._file = self._file, None
            if file is not None:
                faulthandler.disable()
                file.close()

    def write(self, reading: str) -> None:
        """Leave also behind what is being read; "" for nothing."""
        if self._file is None:
            return
        # Notes that cannot be written fail no batch.
        with suppress(OSError):
            self._file.truncate(0)
            self._file.writelines(f"{NOTE}{note}\n" for note in (reading, self._step) if note)
            self._file.flush()


_last_words = LastWords()
#: The subtasks that this process has run.
_process = WorkerProcess(AnyStateFiles(), trace=_last_words.write)

#: Makes lines of what this process logs and prints, from its first batch to its end.
_captures: list[Capture] = []


@dataclass(frozen=True, kw_only=True)
class WorkerLog:
    """How the workers of a vertex log."""

    task: VertexId
    form: Form

    @contextmanager
    def of(self, step: OperatorId, subtask: int) -> Iterator[None]:
        """What the code of a subtask logs and prints meanwhile has its place."""
        if not _captures and not type(sys.stdout).__module__.startswith("pyspark."):
            # Else Spark itself collects it (spark.sql.pyspark.worker.logging.enabled).
            wall_ms = SystemClock().wall_ms
            passes = pass_on if self.form is as_text else None
            capture = Capture(_write, self.form, wall_ms=wall_ms, passes=passes)
            _captures.append(capture.__enter__())
        with place(task=self.task, step=step, subtask=subtask):
            try:
                yield
            finally:
                for capture in _captures:
                    capture.end_lines()


def _write(line: str) -> None:
    """In one piece: the processes of a machine share the stream."""
    stream = sys.__stderr__
    if stream is not None:
        # A log that cannot be written fails no batch.
        with suppress(OSError, ValueError):
            stream.write(line)
            stream.flush()


class OperatorFunction:
    """The function for ``mapInArrow``."""

    def __init__(
        self, function: SubtaskFunction, results: Accumulator[Results], log: WorkerLog
    ) -> None:
        self._function = function
        self._results = results
        self._log = log

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process one partition of one batch."""
        order, subtask = _ordered(self._function.operator_id, BATCH_ORDERS)

        def report(result: BatchResult) -> None:
            self._results.add({(order.batch, subtask): encoded(result)})

        step = self._function.operator_id
        with self._log.of(step, subtask), _last_words.of(step, subtask):
            yield from self._function.batch(_process, order, subtask, batches, report)


class CallFunction:
    """The function for ``mapInArrow`` that calls subtasks outside of a batch."""

    def __init__(self, function: SubtaskFunction, log: WorkerLog) -> None:
        self._function = function
        self._log = log

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Call the subtasks that are here, or the one to restore that is this task's."""
        import pyarrow as pa

        for _ in batches:
            pass
        operator_id = self._function.operator_id
        call, index = _ordered(operator_id, CALLS)
        if isinstance(call, AbandonCall):
            _process.close_all(operator_id)
            return
        here = _process.current(operator_id, call.setup)
        for subtask in here if call.restore is None else call.restore[index : index + 1]:
            with self._log.of(operator_id, subtask):
                result = self._function.call(_process, call, subtask)
            yield pa.RecordBatch.from_pydict(
                {"subtask": pa.array([subtask], pa.int32()), "result": [encoded(result)]}
            )


def _ordered(operator_id: OperatorId, kind: msgspec.json.Decoder[M]) -> tuple[M, int]:
    """The order of the running Spark task for the operator, and the number of its partition."""
    from pyspark import TaskContext

    task = TaskContext.get()
    text = None if task is None else task.getLocalProperty(PROPERTY + operator_id)
    if task is None or text is None:
        raise RuntimeError(
            f"Operator {operator_id!r} runs outside of a batch of its query: a sink must not"
            " compute its input in another thread."
        )
    return received(text, kind, operator_id), task.partitionId()
