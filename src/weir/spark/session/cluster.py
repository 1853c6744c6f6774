"""What a session runs in: the driver's JVM, Spark's executors, and a standalone master."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from weir.monitoring.cluster import ExecutorView, JvmView, ThreadView
from weir.spark.java import JvmClasses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MANAGEMENT = "java.lang.management."
_MESSAGES = "org.apache.spark.deploy.DeployMessages$"
#: How often a session without executors is noticed.
_LOOK_S = 10.0
#: At each such look, one with executors is looked at: once a minute.
_LOOKS_WITH_EXECUTORS = 6


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


class MasterWatch:
    """Stops a session that its standalone master has forgotten, as Spark does not.

    A master removes an application when the connection to its driver breaks, as after a cut of the
    network. The driver's side waits for that master to call, and gets no executor ever again. So
    while a session has none, the master is asked whether it knows the application.

    One that has some is asked for too, less often: of an executor from before the cut Spark may
    never hear that its connection broke. It gives such a one up by way of the master, only once,
    and not at all if that cannot be reached either.
    """

    def __init__(self, session: SparkSession, note: Callable[[str], None]) -> None:
        self._context: Any = session.sparkContext
        self._cluster = SparkCluster(session)
        self._classes = JvmClasses(session.sparkContext)
        self._note = note
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="weir-master", daemon=True)

    def start(self) -> None:
        """Look every few seconds, until ``stop`` or the end of the session."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._over.set()

    def _look_on(self) -> None:
        looks = 0
        while not self._over.wait(_LOOK_S) and self._context._jsc is not None:
            looks += 1
            with contextlib.suppress(Py4JError, OSError):
                # Else the JVM has gone, or the session.
                if looks % _LOOKS_WITH_EXECUTORS and self._cluster.executors():
                    continue
                if not self._is_forgotten() or self._over.is_set():
                    continue
                self._note(
                    f"The master {self._context.master} has removed this application, as after a"
                    " cut of the network, and gives it no more executors: its session is stopped."
                )
                self._context._jsc.sc().stop()
                return

    def _is_forgotten(self) -> bool:
        """Whether a master that is alive does not know the application."""
        places = str(self._context.master).removeprefix("spark://").split(",")
        answers = [self._is_known_at(*place.rsplit(":", 1)) for place in places]
        return False in answers and True not in answers

    def _is_known_at(self, host: str, port: str) -> bool | None:
        """None if that master does not answer, or stands by."""
        for_name = self._classes.java_class("java.lang.Class").forName
        answer = for_name(f"{_MESSAGES}MasterStateResponse")
        kind = self._classes.java_class("scala.reflect.ClassTag").apply(answer)
        question = self._classes.scala_object(f"{_MESSAGES}RequestMasterState")
        references = self._classes.java_class("org.apache.spark.util.RpcUtils")
        # py4j cannot call methods of this class: some name types that PySpark's jars lack.
        field = for_name("org.apache.spark.SparkEnv").getDeclaredField("rpcEnv")
        field.setAccessible(True)
        env = field.get(self._context._jsc.sc().env())
        try:
            master = references.makeDriverRef("Master", host, int(port), env)
            state = master.askSync(question, kind)
        except Py4JError:
            return None
        if str(state.status()) != "ALIVE":
            return None
        return self._context.applicationId in {str(one.id()) for one in state.activeApps()}
