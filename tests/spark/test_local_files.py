"""Local files that Spark writes: their permissions cost no process (``spark/local_files.py``)."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from weir.spark.jvm import Jvm

pytestmark = pytest.mark.spark

_HADOOP = "org.apache.hadoop.fs."


@pytest.mark.parametrize("mode", [0o640, 0o600, 0o755, 0o1777, 0o400])
def test_a_local_file_gets_its_permissions_without_a_process(
    spark: SparkSession, tmp_path: Path, mode: int
) -> None:
    """A release of Hadoop whose file system is built differently fails here."""
    jvm = Jvm(spark)
    uri = jvm.java_class("java.net.URI")("file:///")
    system = jvm.java_class(_HADOOP + "FileSystem").get(uri, spark._jsc.hadoopConfiguration())
    inner = system.getRawFileSystem().getClass().getName()
    assert inner == "weir.ForklessLocalFileSystem"

    file, path = tmp_path / "file", jvm.java_class(_HADOOP + "Path")(str(tmp_path / "file"))
    system.create(path).close()
    system.setPermission(path, jvm.java_class(_HADOOP + "permission.FsPermission")(f"{mode:o}"))

    assert file.stat().st_mode & 0o7777 == mode
    assert not (tmp_path / ".file.crc").exists()
