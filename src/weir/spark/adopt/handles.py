"""``AdoptedQuery``: what ``start()`` gives a script, in place of Spark's ``StreamingQuery``.

It answers for one query of a Weir job. Restarts of the job do not show: a query is active until the
job has ended or the script has stopped it. Its progress is Spark's own of the query that computes
it, under the script's name and a stable id.
"""

from __future__ import annotations

import json
import re
import uuid
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.errors import PySparkValueError
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)
from pyspark.sql.streaming.query import StreamingQuery

if TYPE_CHECKING:
    from weir.core.types import VertexId
    from weir.spark.adopt.query import StartedQuery

#: What follows a vertex's name in the name of its query: the attempt, and whether it is drained.
_ATTEMPT = r"-\d+(-drain)?"
#: Of how many batches the progress is kept: as many as Spark keeps by default.
_PROGRESS = 100
#: The namespace of the ids.
_IDS = uuid.UUID("6c0a3f1e-5a0b-4d0c-9b57-2f1c2d4f8f3a")


class QueryJob(Protocol):
    """The job of a query, for its handle."""

    @property
    def is_running(self) -> bool:
        """Whether it has not ended, though it may not have started."""
        ...

    @property
    def failure(self) -> str | None:
        """Why it failed for good; None otherwise."""
        ...

    @property
    def error(self) -> BaseException | None:
        """What was raised because it could not start."""
        ...

    @property
    def status(self) -> str:
        """Its status, for people."""
        ...

    def begin(self) -> None:
        """Start it, unless it has started."""
        ...

    def wait(self, timeout: float | None) -> bool:
        """Wait until it has ended; False if it has not within so many seconds."""
        ...

    def settle(self) -> None:
        """Wait until all rows that its sources have now are committed."""
        ...

    def stop(self, query: AdoptedQuery) -> None:
        """A query is stopped; with the last one, the job rests."""
        ...

    def vertex_of(self, query: AdoptedQuery) -> VertexId | None:
        """The vertex that computes a query; None before the start."""
        ...


class AdoptedQuery(StreamingQuery):
    """A query of a script."""

    def __init__(self, asked: StartedQuery, job: QueryJob, *, identity: str) -> None:
        """``identity`` is the same at each start of the script; the query's id is made of it."""
        self.asked = asked
        self.identity = identity
        self._job = job
        self._id = uuid.uuid5(_IDS, identity)
        self._run_id = uuid.uuid4()
        #: Of the newest batches, as Spark has it.
        self._progress: deque[str] = deque(maxlen=_PROGRESS)
        #: Whether the script has stopped it.
        self.is_stopped = False

    @property
    def id(self) -> str:
        """The same at each start of the script."""
        return str(self._id)

    @property
    def runId(self) -> str:
        """Another one at each start of the script."""
        return str(self._run_id)

    @property
    def name(self) -> str:
        """The ``queryName``; None if it has none, as in Spark."""
        return self.asked.name  # type: ignore[return-value]

    @property
    def is_running(self) -> bool:
        """Whether the query is active, without starting its job."""
        return self._job.is_running and not self.is_stopped

    @property
    def isActive(self) -> bool:
        """Whether neither the job has ended nor the script has stopped the query."""
        self._job.begin()
        return self.is_running

    @property
    def status(self) -> dict[str, Any]:
        """The job's status, in the form of Spark's."""
        self._job.begin()
        active = self.is_running
        message = self._job.status if active else "Terminated"
        return {"message": message, "isDataAvailable": False, "isTriggerActive": active}

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """Spark's progress of the newest batch; None before the first."""
        found = self.recentProgress
        return found[-1] if found else None

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """Spark's progress of the newest batches."""
        self._job.begin()
        return [self._translated(progress) for progress in tuple(self._progress)]

    def exception(self) -> StreamingQueryException | None:
        """Why the job failed for good; None if it has not."""
        self._job.begin()
        failure = self._job.failure
        if failure is None:
            return None
        return StreamingQueryException(desc=failure, stackTrace="")

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until the query is not active; with a timeout, return whether it is not.

        Raises ``StreamingQueryException`` if the job failed for good.
        """
        if timeout is not None and (not isinstance(timeout, int | float) or timeout <= 0):
            raise PySparkValueError(
                errorClass="VALUE_NOT_POSITIVE",
                messageParameters={"arg_name": "timeout", "arg_value": type(timeout).__name__},
            )
        ended = self.is_stopped or self._job.wait(timeout)
        self.raise_failure()
        return None if timeout is None else ended

    def raise_failure(self) -> None:
        """Raise ``StreamingQueryException`` if the job failed for good.

        Its cause is what refused the start, if anything did.
        """
        failed = self.exception()
        if failed is not None:
            raise failed from self._job.error

    def processAllAvailable(self) -> None:
        """Wait until the rows that the sources have now are committed."""
        self._job.settle()
        self.raise_failure()

    def stop(self) -> None:
        """Stop the query. With the last of a job the job rests, and the same command resumes it."""
        if not self.is_stopped:
            self.is_stopped = True
            self._job.stop(self)

    def explain(self, extended: bool = False) -> None:
        """Print the plan that the script has made."""
        self.asked.frame.explain(extended)

    def is_computed_by(self, name: str | None) -> bool:
        """Whether it is the Spark query of this name that computes the query."""
        vertex = self._job.vertex_of(self)
        return bool(vertex and name and re.fullmatch(re.escape(vertex) + _ATTEMPT, name))

    def _translated(self, progress: str) -> StreamingQueryProgress:
        """Spark's progress under the name, the ids and the sink of the script's query."""
        found = json.loads(progress)
        found |= {"id": self.id, "runId": self.runId, "name": self.name}
        found["sink"] = {**found.get("sink", {}), "description": describe_target(self.asked)}
        return StreamingQueryProgress.fromJson(found)

    # -- events for listeners

    def started(self) -> QueryStartedEvent:
        """The query has been started."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return QueryStartedEvent(self._id, self._run_id, self.name, now, set())

    def progressed(self, progress: str) -> QueryProgressEvent:
        """Note Spark's progress of a batch of what computes the query."""
        self._progress.append(progress)
        return QueryProgressEvent(self._translated(progress))

    def idle(self, timestamp: str) -> QueryIdleEvent:
        """There was nothing to read."""
        return QueryIdleEvent(self._id, self._run_id, timestamp)

    def terminated(self, failure: str | None) -> QueryTerminatedEvent:
        """The query has ended."""
        return QueryTerminatedEvent(self._id, self._run_id, failure, None)


def describe_target(asked: StartedQuery) -> str:
    """The sink of a query, as a script names it: ``parquet[out/orders]``."""
    if asked.each_batch is not None:
        return "foreachBatch"
    if asked.each_row is not None:
        return "foreach"
    target = asked.table or asked.options.get("path") or asked.options.get("topic")
    form = asked.format or ("table" if asked.table else "parquet")
    return form if target is None else f"{form}[{target}]"
