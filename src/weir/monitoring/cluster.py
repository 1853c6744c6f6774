"""``Cluster``: the processes that a job runs in, for REST and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class JvmView:
    """The driver's JVM. Memory in bytes, times in milliseconds."""

    version: str
    arch: str
    #: Its options, which may hold secrets.
    options: tuple[str, ...]
    classpath: tuple[str, ...]
    #: Its process on this machine.
    pid: int
    heap_used: int
    heap_committed: int
    heap_max: int
    non_heap_used: int
    non_heap_committed: int
    #: -1 if there is no limit.
    non_heap_max: int
    #: Buffers outside of the heap: by pool (direct, mapped) how many, their bytes and capacity.
    buffers: Mapping[str, tuple[int, int, int]]
    threads: int
    classes_loaded: int
    #: By collector: how often it ran, and for how long in all.
    collectors: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class ExecutorView:
    """An executor of Spark. Memory in bytes."""

    #: "driver" for the driver's own JVM, which runs Spark's tasks with a local master.
    executor_id: str
    host: str
    port: int
    #: Spark tasks that can run at a time, and that run now.
    cores: int
    active_tasks: int
    #: For storage and execution, and what of it storage uses.
    memory_max: int
    memory_used: int

    @property
    def free_cores(self) -> int:
        """Spark tasks that can run besides those that do."""
        return max(0, self.cores - self.active_tasks)


@dataclass(frozen=True, kw_only=True)
class ThreadView:
    """A thread and its stack, as text."""

    name: str
    text: str


class Cluster(Protocol):
    """The processes of a job. Methods ask the JVM, may block, and raise if it is gone."""

    def jvm(self) -> JvmView:
        """The driver's JVM."""
        ...

    def executors(self) -> tuple[ExecutorView, ...]:
        """The executors that run Spark's tasks now."""
        ...

    def threads(self, executor_id: str) -> tuple[ThreadView, ...]:
        """The Java threads of an executor; empty if it does not answer."""
        ...
