"""What Spark does for each file and task, done cheaply (``session/local_files.py`` and others)."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from weir.spark.java import Jvm

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


def test_the_settings_that_go_with_each_task_do_not_say_which_file_each_is_from(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A release of Hadoop that keeps the origins elsewhere fails here; so does one that reads
    further files of settings when a table is first written."""
    spark.range(3).write.parquet(str(tmp_path / "table"))
    assert spark.read.parquet(str(tmp_path / "table")).count() == 3
    sent = spark._jsparkSession.sessionState().newHadoopConf()

    known = [name for name in ("fs.defaultFS", "yarn.acl.enable") if sent.getPropertySources(name)]

    assert sent.get("fs.defaultFS") == "file:///"
    assert known == []
