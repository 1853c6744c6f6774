"""A sink that records its calls, and fails or blocks when a test says so. Needs no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from weir.core.types import Payload
from weir.durable.sink_port import CommitRetries, SinkPort
from weir.runtime.concurrency import ThreadWaits, Waits
from weir.sinks.base import Batch, Commit, Sink, SinkContext
from weir.storage.local import LocalFileSystem

JOB = "0123456789abcdef0123456789abcdef"


def sink_context(**changes: Any) -> SinkContext:
    """What sink ``out`` is given in the first attempt of a job, on local files, but for changes."""
    context: dict[str, Any] = {
        "job_id": JOB,
        "job_name": "orders",
        "sink": "out",
        "attempt": 1,
        "file_system": lambda _: LocalFileSystem(),
    }
    return SinkContext(**context | changes)


class FakeSink(Sink):
    """Records (method, arguments) in a list that several sinks may share."""

    def __init__(self, name: str = "out", calls: list[tuple[Any, ...]] | None = None) -> None:
        self.name = name
        self.calls: list[tuple[Any, ...]] = [] if calls is None else calls
        #: Raised by the next commits.
        self.errors: list[Exception] = []
        self.newest: int | None = None
        #: The commits that the target reports, newest first.
        self.recorded_commits: list[Commit] = []
        #: What it stages when it finishes.
        self.held_back: Payload | None = None
        #: The Delta table that it claims to append to.
        self.table: str | None = None
        #: A path that exists as long as the sink's target does.
        self.mark: str | None = None

    def landmark(self) -> str | None:
        return self.mark

    def table_path(self) -> str | None:
        return self.table

    def describe(self) -> str:
        return f"FakeSink({self.name!r})"

    def check(self, context: SinkContext) -> None:
        self.calls.append(("check", self.name, context.job_id, context.attempt))

    def open(self, context: SinkContext) -> None:
        self.calls.append(("open", self.name, context.job_id, context.attempt))

    def stage(self, frame: object, step: object) -> Payload | None:
        raise AssertionError("nothing is staged here")

    def flush(self, payloads: Sequence[Payload]) -> list[Payload]:
        self.calls.append(("flush", self.name, *payloads))
        return [{**payload, "flushed": self.name} for payload in payloads]

    def commit(self, epoch: int, payloads: Sequence[Payload]) -> int:
        self.calls.append(("commit", self.name, epoch, list(payloads)))
        if self.errors:
            raise self.errors.pop(0)
        return len(payloads)

    def finish(self, batch: Batch) -> Payload | None:
        self.calls.append(("finish", self.name, batch.batch_id))
        return self.held_back

    def close(self) -> None:
        self.calls.append(("close", self.name))

    def newest_committed(self) -> int | None:
        return self.newest

    def commits(self, context: SinkContext) -> Iterator[Commit]:
        return iter(self.recorded_commits)

    def clean(self, attempt: int) -> None:
        self.calls.append(("clean", self.name, attempt))


def sink_port(
    *sinks: FakeSink, attempts: int = 3, backoff_ms: int = 1, waits: Waits | None = None
) -> SinkPort:
    """A port with these sinks."""
    return SinkPort(
        sinks={sink.name: sink for sink in sinks},
        job_name="orders",
        file_system=lambda _: LocalFileSystem(),
        waits=waits or ThreadWaits(),
        retries=CommitRetries(
            attempts=attempts, initial_backoff_ms=backoff_ms, max_backoff_ms=backoff_ms * 4
        ),
    )
