"""Java's view of Python objects (``spark/java.py``)."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from py4j.java_gateway import is_instance_of
from py4j.protocol import REFLECTION_COMMAND_NAME
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession, functions
from tests.kit.waiting import wait_until

from weir.spark.java import JavaIdentity, Jvm

pytestmark = pytest.mark.spark


class Maker(JavaIdentity):
    """Returns a new Java object at each call."""

    def __init__(self, jvm: Jvm) -> None:
        super().__init__(jvm, "maker")
        self._jvm = jvm
        self.made: list[weakref.ref[Any]] = []

    def call(self) -> Any:
        """A new list."""
        made = self._jvm.java_class("java.util.ArrayList")()
        self.made.append(weakref.ref(made))
        return made

    class Java:
        implements = ("java.util.concurrent.Callable",)


def test_what_a_callback_returns_is_kept_until_the_jvm_has_surely_read_the_reply(
    spark: SparkSession,
) -> None:
    """A busy JVM may otherwise forget it first, and Spark gets null."""
    jvm = Jvm(spark)
    maker = Maker(jvm)
    for _ in range(100):
        task = jvm.java_class("java.util.concurrent.FutureTask")(maker.proxy)
        task.run()
        assert task.get().isEmpty()
    del task
    gc.collect()
    alive = [made() is not None for made in maker.made]
    assert alive == [False] * (100 - 64) + [True] * 64
    maker.release()


def test_a_released_object_is_forgotten_though_java_was_given_it_again(spark: SparkSession) -> None:
    """Spark's factories return themselves; after a few calls such an object would stay."""
    jvm = Jvm(spark)

    class Itself(Maker):
        def call(self) -> Any:
            return self.proxy

    one = Itself(jvm)
    task = jvm.java_class("java.util.concurrent.FutureTask")(one.proxy)
    task.run()
    assert task.get().toString() == one.toString()
    known = weakref.ref(one)
    one.release()
    del one, task

    def is_gone() -> bool:
        gc.collect()
        jvm.java_class("java.lang.System").gc()
        return known() is None

    wait_until(is_gone, "nobody holds it")


def test_java_sees_one_object_that_equals_itself(spark: SparkSession) -> None:
    """Spark keeps sources in maps."""
    jvm = Jvm(spark)
    one, other = Maker(jvm), Maker(jvm)
    seen = jvm.java_class("java.util.HashMap")()
    seen.put(one.proxy, 1)
    seen.put(other.proxy, 2)
    assert (seen.get(one.proxy), seen.get(other.proxy), seen.size()) == (1, 2, 2)
    assert one.proxy.toString() == one.toString() != other.toString()
    one.release()
    other.release()


def test_pyspark_asks_the_jvm_once_for_a_class_and_a_static_method(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question searches all of Spark's jars."""
    gateway: Any = spark.sparkContext._gateway
    client = gateway._gateway_client
    send, sent = client.send_command, []

    def count(command: str, *arguments: Any, **named: Any) -> Any:
        sent.append(command)
        return send(command, *arguments, **named)

    def ask() -> None:
        thrown = functions.col("id")._jc
        assert not is_instance_of(gateway, thrown, "java.lang.Throwable")
        with pytest.raises(AnalysisException):
            spark.sql("SELECT nothing")
        spark.range(1).select(functions.lit(1).alias("one")).collect()

    ask()
    monkeypatch.setattr(client, "send_command", count)
    ask()
    assert sent
    assert [one for one in sent if one.startswith(REFLECTION_COMMAND_NAME)] == []
