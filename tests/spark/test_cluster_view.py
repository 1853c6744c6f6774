"""What a session says of its JVM and its executors."""

from __future__ import annotations

import psutil
import pytest
from pyspark.sql import SparkSession

from weir.spark.session.cluster import SparkCluster

pytestmark = pytest.mark.spark


def test_the_jvm_and_its_one_executor_are_seen(spark: SparkSession) -> None:
    """With a local master, the driver's JVM runs Spark's tasks; its process is a child of ours."""
    cluster = SparkCluster(spark)
    jvm = cluster.jvm()
    assert 0 < jvm.heap_used <= jvm.heap_committed <= jvm.heap_max
    assert jvm.threads > 10 and jvm.classes_loaded > 1_000
    assert {"direct", "mapped"} <= set(jvm.buffers)
    assert sum(count for count, _ in jvm.collectors.values()) >= 0 and jvm.collectors
    assert any("spark" in entry for entry in jvm.classpath)
    children = psutil.Process().children(recursive=True)
    assert jvm.pid in [child.pid for child in children]
    (driver,) = cluster.executors()
    assert (driver.executor_id, driver.cores) == ("driver", spark.sparkContext.defaultParallelism)
    assert 0 <= driver.memory_used < driver.memory_max
    threads = cluster.threads("driver")
    assert any("java.lang" in thread.text for thread in threads)
    assert cluster.threads("7") == ()
