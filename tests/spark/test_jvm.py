"""Java's view of Python objects (``spark/jvm.py``)."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from pyspark.sql import SparkSession

from weir.spark.jvm import JavaIdentity, Jvm

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
