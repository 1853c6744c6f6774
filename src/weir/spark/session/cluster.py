"""What a session runs in: the driver's JVM, and Spark's executors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weir.monitoring.cluster import ExecutorView, JvmView, ThreadView
from weir.spark.java import JvmClasses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MANAGEMENT = "java.lang.management."


@dataclass(frozen=True, kw_only=True)
class _Beans:
    """Where the JVM reports what changes; buffers and collectors by name."""

    memory: Any
    threads: Any
    classes: Any
    buffers: Mapping[str, Any]
    collectors: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Constants:
    """What never changes; see ``JvmView``."""

    version: str
    arch: str
    options: tuple[str, ...]
    classpath: tuple[str, ...]
    pid: int


class SparkCluster:
    """Implements ``monitoring.cluster.Cluster``: a dozen calls of the JVM or two for each answer.

    On a busy machine a call takes some milliseconds.
    """

    def __init__(self, session: SparkSession) -> None:
        self._context: Any = session.sparkContext
        self._classes = JvmClasses(session.sparkContext)

    def jvm(self) -> JvmView:
        """The driver's JVM."""
        beans, constants = self._beans, self._constants
        heap, other = beans.memory.getHeapMemoryUsage(), beans.memory.getNonHeapMemoryUsage()
        return JvmView(
            version=constants.version,
            arch=constants.arch,
            options=constants.options,
            classpath=constants.classpath,
            pid=constants.pid,
            heap_used=int(heap.getUsed()),
            heap_committed=int(heap.getCommitted()),
            heap_max=int(heap.getMax()),
            non_heap_used=int(other.getUsed()),
            non_heap_committed=int(other.getCommitted()),
            non_heap_max=int(other.getMax()),
            buffers={
                name: (
                    int(pool.getCount()),
                    int(pool.getMemoryUsed()),
                    int(pool.getTotalCapacity()),
                )
                for name, pool in beans.buffers.items()
            },
            threads=int(beans.threads.getThreadCount()),
            classes_loaded=int(beans.classes.getLoadedClassCount()),
            collectors={
                name: (int(bean.getCollectionCount()), int(bean.getCollectionTime()))
                for name, bean in beans.collectors.items()
            },
        )

    @cached_property
    def _beans(self) -> _Beans:
        factory = self._classes.java_class(_MANAGEMENT + "ManagementFactory")
        buffers = self._classes.java_class("java.lang.Class").forName(
            _MANAGEMENT + "BufferPoolMXBean"
        )
        return _Beans(
            memory=factory.getMemoryMXBean(),
            threads=factory.getThreadMXBean(),
            classes=factory.getClassLoadingMXBean(),
            buffers={str(bean.getName()): bean for bean in factory.getPlatformMXBeans(buffers)},
            collectors={str(bean.getName()): bean for bean in factory.getGarbageCollectorMXBeans()},
        )

    @cached_property
    def _constants(self) -> _Constants:
        factory = self._classes.java_class(_MANAGEMENT + "ManagementFactory")
        runtime = factory.getRuntimeMXBean()
        system = self._classes.java_class("java.lang.System")
        return _Constants(
            version=f"{runtime.getVmName()} - {runtime.getVmVendor()} - {runtime.getVmVersion()}",
            arch=str(system.getProperty("os.arch")),
            options=tuple(str(argument) for argument in runtime.getInputArguments()),
            classpath=tuple(str(runtime.getClassPath()).split(":")),
            pid=int(runtime.getPid()),
        )

    def executors(self) -> tuple[ExecutorView, ...]:
        """The executors that run Spark's tasks now.

        A cluster's driver is none of them; with a local master it is the only executor.
        """
        found = self._context._jsc.sc().statusStore().executorList(True)
        known = [found.apply(index) for index in range(found.size())]
        views = [self._executor(executor) for executor in known]
        return tuple(view for view in views if view.cores > 0)

    def threads(self, executor_id: str) -> tuple[ThreadView, ...]:
        """The Java threads of an executor; empty if it does not answer."""
        dump = self._context._jsc.sc().getExecutorThreadDump(executor_id)
        if not dump.isDefined():
            return ()
        return tuple(
            ThreadView(name=str(thread.threadName()), text=str(thread)) for thread in dump.get()
        )

    def _executor(self, executor: Any) -> ExecutorView:
        host, _, port = str(executor.hostPort()).rpartition(":")
        return ExecutorView(
            executor_id=str(executor.id()),
            host=host,
            port=int(port) if port.isdecimal() else -1,
            cores=int(executor.maxTasks()),
            active_tasks=int(executor.activeTasks()),
            memory_max=int(executor.maxMemory()),
            memory_used=int(executor.memoryUsed()),
        )
