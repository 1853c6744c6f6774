"""Java classes, Scala objects and Java's view of Python objects, without a search.

``jvm.org.apache.spark.X`` in py4j asks the JVM for each part of the name whether it is a package or
a class, and each ask searches all jars of Spark. Here a class is named in full and found once.

Spark calls sources that the driver implements through *proxies* (py4j's callbacks, 0.3 ms there and
back). Each time that a Python object is passed to Java it gets a proxy of its own, and Spark keeps
sources in maps: ``JavaIdentity`` makes one proxy for all times, and says that it equals itself.
"""

from __future__ import annotations

import functools
import itertools
import json
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaClass
from pyspark.java_gateway import ensure_callback_server_started

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_SQL = "org.apache.spark.sql."


class JvmClasses:
    """The classes of a context's JVM, and values of Scala's."""

    def __init__(self, context: SparkContext) -> None:
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
        """Make the session the active one of this thread, as it is in the thread that made it."""
        self.sql_class("classic.SparkSession").setActiveSession(self.java_session)

    def sql_class(self, name: str) -> Any:
        """The class of this name below ``org.apache.spark.sql``."""
        return self.java_class(_SQL + name)

    def schema(self, schema: StructType) -> Any:
        """The schema in the JVM, with its column metadata."""
        return self.sql_class("types.DataType").fromJson(json.dumps(schema.jsonValue()))

    def attributes(self, java_schema: Any) -> Any:
        """New attributes of a plan, one for each column."""
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


class JavaIdentity:
    """A Python object that Java knows as one object of the interfaces that its class ``Java``
    names."""

    _numbers = itertools.count(1)

    def __init__(self, jvm: Jvm, name: str) -> None:
        self._number = next(self._numbers)
        self._name = f"{name}#{self._number}"
        ensure_callback_server_started(jvm.gateway)  # type: ignore[no-untyped-call]
        holder = jvm.java_class("java.util.ArrayList")()
        holder.add(self)
        #: Java's view of it. Each holds the other, so whoever has done with it calls ``release``.
        self.proxy: Any = holder.get(0)

    def release(self) -> None:
        """Let Java forget it once no plan refers to it any more."""
        self.proxy = None

    def toString(self) -> str:  # noqa: N802 (Java's name)
        """The name, which no other object has."""
        return self._name

    def hashCode(self) -> int:  # noqa: N802 (Java's name)
        """The number, which no other object has."""
        return self._number

    def equals(self, other: Any) -> bool:
        """Whether it is the same object. Java gives its own view of it."""
        return other is not None and str(other.toString()) == self._name


class JavaStream(JavaIdentity):
    """What Weir's streaming sources have in common. Names are Java's."""

    def __init__(self, jvm: Jvm, name: str) -> None:
        super().__init__(jvm, name)
        self._jvm = jvm

    def deserializeOffset(self, text: str) -> Any:  # noqa: N802
        """An offset from the query's log."""
        return self._jvm.offset(text)

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """The driver's answer is the limit."""
        return self._jvm.sql_class("connector.read.streaming.ReadLimit").allAvailable()

    def reportLatestOffset(self) -> None:  # noqa: N802
        """Unknown: it is asked for a lag."""

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Nothing to prepare: the driver bounds what is read."""

    def commit(self, end: Any) -> None:
        """A checkpoint says what is over, not Spark's commit."""

    def stop(self) -> None:
        """Nothing to give back."""


@functools.lru_cache(maxsize=1024)
def _java_class(client: Any, name: str) -> Any:
    return JavaClass(name, client)


@functools.lru_cache(maxsize=256)
def _scala_object(client: Any, name: str) -> Any:
    return getattr(_java_class(client, name + "$"), "MODULE$")
