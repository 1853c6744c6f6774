"""What a session runs in: the driver's JVM, and Spark's executors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weir.runtime.cluster import ExecutorView, JvmView, ThreadView
from weir.spark.jvm import JvmClasses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MANAGEMENT = "java.lang.management."


class SparkCluster:
    """Implements ``weir.runtime.cluster.Cluster``: dozens of calls of the JVM for each answer."""

    def __init__(self, session: SparkSession) -> None:
        self._context: Any = session.sparkContext
        self._classes = JvmClasses(session.sparkContext)

    def jvm(self) -> JvmView:
        """The driver's JVM."""
        factory = self._classes.java_class(_MANAGEMENT + "ManagementFactory")
        runtime, memory = factory.getRuntimeMXBean(), factory.getMemoryMXBean()
        heap, other = memory.getHeapMemoryUsage(), memory.getNonHeapMemoryUsage()
        system = self._classes.java_class("java.lang.System")
        buffers = factory.getPlatformMXBeans(
            self._classes.java_class("java.lang.Class").forName(_MANAGEMENT + "BufferPoolMXBean")
        )
        return JvmView(
            version=f"{runtime.getVmName()} - {runtime.getVmVendor()} - {runtime.getVmVersion()}",
            arch=str(system.getProperty("os.arch")),
            options=tuple(str(one) for one in runtime.getInputArguments()),
            classpath=tuple(str(runtime.getClassPath()).split(":")),
            pid=int(runtime.getPid()),
            heap_used=int(heap.getUsed()),
            heap_committed=int(heap.getCommitted()),
            heap_max=int(heap.getMax()),
            non_heap_used=int(other.getUsed()),
            non_heap_committed=int(other.getCommitted()),
            non_heap_max=int(other.getMax()),
            buffers={
                str(pool.getName()): (
                    int(pool.getCount()),
                    int(pool.getMemoryUsed()),
                    int(pool.getTotalCapacity()),
                )
                for pool in buffers
            },
            threads=int(factory.getThreadMXBean().getThreadCount()),
            classes_loaded=int(factory.getClassLoadingMXBean().getLoadedClassCount()),
            collectors={
                str(one.getName()): (int(one.getCollectionCount()), int(one.getCollectionTime()))
                for one in factory.getGarbageCollectorMXBeans()
            },
        )

    def executors(self) -> tuple[ExecutorView, ...]:
        """The executors that run Spark's tasks now.

        A cluster's driver is none of them; with a local master it is the only one.
        """
        found = self._context._jsc.sc().statusStore().executorList(True)
        known = [found.apply(index) for index in range(found.size())]
        views = [self._executor(one) for one in known]
        return tuple(one for one in views if one.cores > 0)

    def threads(self, executor_id: str) -> tuple[ThreadView, ...]:
        """The Java threads of an executor; empty if it does not answer."""
        dump = self._context._jsc.sc().getExecutorThreadDump(executor_id)
        if not dump.isDefined():
            return ()
        return tuple(ThreadView(name=str(one.threadName()), text=str(one)) for one in dump.get())

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
