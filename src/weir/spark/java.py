"""Java classes, Scala objects, and Python objects that Java can call.

For ``jvm.org.apache.spark.X`` py4j asks the JVM whether each part of the name is a package or a
class, and each question searches all of Spark's jars. Here a class is named in full and looked up
once, and ``hold_classes`` makes PySpark look up a class once, too.

Spark calls sources that the driver implements through *proxies* (py4j's callbacks, 0.3 ms per round
trip). py4j makes a new proxy each time a Python object is passed to Java, but Spark keeps sources
in maps: ``JavaIdentity`` keeps one proxy for the object, which equals itself.

A Java object that a callback returns is named in its reply, and the JVM looks the name up when it
reads that. But Python makes the JVM forget an object as soon as nothing in Python refers to it.
On a busy machine the JVM may do so first, and the callback then returns null to Spark. So what is
returned is kept for a while.

Each thread of the JVM that calls Python has a connection, and a thread here that serves it. Neither
ends with the JVM's thread, so those of queries are ended once the query has ended.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import socket
from collections import deque
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView
from py4j.protocol import Py4JError
from pyspark.java_gateway import ensure_callback_server_started

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

_SQL = "org.apache.spark.sql."

#: How many of the newest returned objects are kept, for each object that Java calls. Spark makes
#: some ten calls for each batch, one after the other.
_KEPT = 64
#: A call that only the thread of a query makes.
_CALL_OF_QUERIES = "latestOffset"


class JvmClasses:
    """The classes of a context's JVM, and Scala values."""

    def __init__(self, context: SparkContext | type[SparkContext]) -> None:
        self.gateway: Any = context._gateway

    def java_class(self, name: str) -> Any:
        """The class of this full name (``java.util.ArrayList``)."""
        return _java_class(self.gateway._gateway_client, name)

    def scala_object(self, name: str) -> Any:
        """The Scala ``object`` of this full name."""
        return _scala_object(self.gateway._gateway_client, name)

    @property
    def none(self) -> Any:
        """Scala's ``None``."""
        return self.scala_object("scala.None")

    def some(self, value: Any) -> Any:
        """Scala's ``Some(value)``."""
        return self.java_class("scala.Some")(value)

    def seq(self, values: Iterable[Any]) -> Any:
        """A Scala ``Seq``."""
        collected = self.java_class("java.util.ArrayList")()
        for value in values:
            collected.add(value)
        return self.java_class("org.apache.spark.api.python.PythonUtils").toSeq(collected)

    def map(self, entries: Mapping[str, str]) -> Any:
        """An immutable Scala ``Map``."""
        collected = self.java_class("java.util.HashMap")()
        for key, value in entries.items():
            collected.put(key, value)
        return self.java_class("org.apache.spark.api.python.PythonUtils").toScalaMap(collected)

    def array(self, kind: Any, values: Iterable[Any]) -> Any:
        """A Java array of the class ``kind``."""
        given = list(values)
        made = self.gateway.new_array(kind, len(given))
        for index, value in enumerate(given):
            made[index] = value
        return made


class Jvm(JvmClasses):
    """A session's JVM."""

    def __init__(self, session: SparkSession) -> None:
        super().__init__(session.sparkContext)
        self.session = session
        #: The session in the JVM.
        self.java_session: Any = session._jsparkSession

    def activate_session(self) -> None:
        """Make the session this thread's active one, as it is in the thread that made it."""
        self.sql_class("classic.SparkSession").setActiveSession(self.java_session)

    def sql_class(self, name: str) -> Any:
        """The class of this name below ``org.apache.spark.sql``."""
        return self.java_class(_SQL + name)

    def schema(self, schema: StructType) -> Any:
        """The schema in the JVM, with its column metadata."""
        return self.sql_class("types.DataType").fromJson(json.dumps(schema.jsonValue()))

    def attributes(self, java_schema: Any) -> Any:
        """New plan attributes, one for each column."""
        return self.sql_class("catalyst.types.DataTypeUtils").toAttributes(java_schema)

    def rows(self, plan: Any) -> Any:
        """A logical plan as the JVM's DataFrame."""
        return self.scala_object(_SQL + "classic.Dataset").ofRows(self.java_session, plan)

    def frame(self, plan: Any) -> DataFrame:
        """A logical plan as a DataFrame."""
        from pyspark.sql import DataFrame

        return DataFrame(self.rows(plan), self.session)

    def offset(self, text: str) -> Any:
        """An offset of a streaming source. Spark compares offsets by their text."""
        return self.sql_class("execution.streaming.runtime.SerializedOffset")(text)


class _Callbacks:
    """What Java sees of an object: its methods, which keep what they have returned."""

    def __init__(self, seen: JavaIdentity, client: Any) -> None:
        self._seen = seen
        self._client = client
        #: Connections from threads of queries.
        self._callers: WeakSet[Any] = WeakSet()
        self._returned: deque[Any] = deque(maxlen=_KEPT)
        self.Java: Any = getattr(seen, "Java")  # noqa: B009 (a subclass has it)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._seen, name)

        def call(*arguments: Any) -> Any:
            if name == _CALL_OF_QUERIES:
                self._know_caller()
            returned = method(*arguments)
            self._returned.append(returned)
            return returned

        return call

    def forget(self) -> None:
        """Keep nothing any more, and end the connections of queries, which have ended."""
        self._returned.clear()
        for connection in tuple(self._callers):
            # Its thread closes it then. If the connection is closed already, so is its socket.
            with contextlib.suppress(OSError, AttributeError):
                connection.socket.shutdown(socket.SHUT_RDWR)

    def _know_caller(self) -> None:
        # Without threads that are pinned to each other, py4j has a pool of connections.
        found = getattr(self._client, "get_thread_connection", lambda: None)()
        if found is not None and not found.initiated_from_client:
            self._callers.add(found)


class JavaIdentity:
    """A Python object that Java sees as one object, of the interfaces that ``Java`` names."""

    _numbers = itertools.count(1)

    def __init__(self, jvm: Jvm, name: str) -> None:
        self._number = next(self._numbers)
        self._name = f"{name}#{self._number}"
        ensure_callback_server_started(jvm.gateway)  # type: ignore[no-untyped-call]
        holder = jvm.java_class("java.util.ArrayList")()
        self._callbacks = _Callbacks(self, jvm.gateway._gateway_client)
        holder.add(self._callbacks)
        #: Java's view of the object. They refer to each other, so call ``release`` when done.
        self.proxy: Any = holder.get(0)

    def release(self) -> None:
        """Drop Java's view of the object, once no plan refers to it."""
        self.proxy = None
        # Some of its methods return it.
        self._callbacks.forget()

    def toString(self) -> str:  # noqa: N802 (Java's name)
        """The object's unique name."""
        return self._name

    def hashCode(self) -> int:  # noqa: N802 (Java's name)
        """The object's unique number."""
        return self._number

    def equals(self, other: Any) -> bool:
        """Whether it is the same object. Java passes its own view of it."""
        return other is not None and str(other.toString()) == self._name


class JavaStream(JavaIdentity):
    """The base of Weir's streaming sources. Method names are Java's."""

    def __init__(self, jvm: Jvm, name: str) -> None:
        super().__init__(jvm, name)
        self._jvm = jvm

    def deserializeOffset(self, text: str) -> Any:  # noqa: N802
        """An offset from the query's log."""
        return self._jvm.offset(text)

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """No limit of Spark's: the driver's answer bounds what is read."""
        return self._jvm.sql_class("connector.read.streaming.ReadLimit").allAvailable()

    def reportLatestOffset(self) -> None:  # noqa: N802
        """Unknown. Spark asks only to report a lag."""

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Do nothing: the driver bounds what is read."""

    def commit(self, end: Any) -> None:
        """Do nothing: Weir's checkpoints, not Spark's commits, say what is no longer needed."""

    def stop(self) -> None:
        """Do nothing: there is nothing to release."""


def outlive_signals(gateway: Any) -> None:
    """Let the JVM go on at SIGTERM and SIGHUP: it ends with the driver, which suspends the job.

    Service managers, ``timeout`` and closed terminals signal the whole process group. A JVM that
    this process has not started, as below ``spark-submit``, keeps its handlers.
    """
    if gateway.proc is None:
        return
    client = gateway._gateway_client
    # With the option -Xrs, and without the module java.desktop, the JVM ends by these signals.
    with contextlib.suppress(Py4JError):
        # A handler that does nothing: the JVM's children would inherit a signal that is ignored.
        handler = _idle(client, "sun.misc.SignalHandler")
        signal = _java_class(client, "sun.misc.Signal")
        for name in ("TERM", "HUP"):
            signal.handle(signal(name), handler)


def end_quietly(query: StreamingQuery) -> None:
    """Let Java print no stack trace if the thread of a query dies of an exception.

    Spark logs why a query fails, and reports it. But if the driver was killed, the thread cannot
    stop its sources, nor log that, and Java would print this between the lines of the next driver.
    """
    running = query._jsq
    # Without the module java.desktop, Java prints it.
    with contextlib.suppress(Py4JError):
        handler = _idle(running._gateway_client, "java.lang.Thread$UncaughtExceptionHandler")
        running.streamingQuery().queryExecutionThread().setUncaughtExceptionHandler(handler)


def _idle(client: Any, interface: str) -> Any:
    """An object of a Java interface, whose methods do nothing."""
    return _java_class(client, "java.beans.EventHandler").create(
        _java_class(client, "java.lang.Class").forName(interface),
        _java_class(client, "java.lang.Object")(),
        "hashCode",
    )


def hold_classes(gateway: Any) -> None:
    """Make PySpark ask the JVM once, not again and again, for a class or a static method.

    Each exception that it translates would be some thirty questions, and each batch several.
    """
    view, client = gateway.jvm, gateway._gateway_client
    if isinstance(view, _HoldingView):
        return
    view.__class__ = _HoldingView
    # py4j itself names this class part by part, for isinstance.
    package = JavaPackage("py4j", client, view._id)
    package.reflection = JavaPackage("py4j.reflection", client, view._id)
    package.reflection.TypeUtil = _java_class(client, "py4j.reflection.TypeUtil")
    view.py4j = package


class _HoldingView(JVMView):  # type: ignore[misc]
    """Names the classes that have been looked up."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, JavaClass):
            found = self.__dict__[name] = _java_class(self._gateway_client, found._fqn)
        return found


class _HoldingClass(JavaClass):  # type: ignore[misc]
    """Has the static methods that have been looked up."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, JavaMember):
            self.__dict__[name] = found
        return found


@functools.lru_cache(maxsize=1024)
def _java_class(client: Any, name: str) -> Any:
    return _HoldingClass(name, client)


@functools.lru_cache(maxsize=256)
def _scala_object(client: Any, name: str) -> Any:
    return getattr(_java_class(client, name + "$"), "MODULE$")
