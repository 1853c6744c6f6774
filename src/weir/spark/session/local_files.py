"""Lets Spark write local files without a process for each, for the whole JVM.

Hadoop gives every local file and directory that it creates its permissions. Without its native
library, which PySpark does not have, it forks a ``chmod`` for each: 14 in a small batch with state,
which is a fifth of the batch's time. Java can set permissions itself. So the JVM's one file system
for ``file:`` gets another inner file system, which differs in that method alone. Spark's compiler
for generated code makes its class from the source below.

The file system also stops writing ``.crc`` files, each of which costs a second file: checkpoints
have checksums of their own.

Hadoop's ``RawLocalFileSystem`` itself must not take the place of the outer file system: RocksDB
snapshots then fail silently in the background.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from weir.spark.java import Jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_HADOOP = "org.apache.hadoop.fs."
_CLASS = "weir.ForklessLocalFileSystem"
_SOURCE = """
package weir;

public class ForklessLocalFileSystem extends org.apache.hadoop.fs.RawLocalFileSystem {
  public void setPermission(
      org.apache.hadoop.fs.Path path, org.apache.hadoop.fs.permission.FsPermission permission)
      throws java.io.IOException {
    java.nio.file.Files.setAttribute(
        pathToFile(path).toPath(), "unix:mode", Integer.valueOf(permission.toShort()));
  }
}
"""


def write_cheaply(session: SparkSession) -> None:
    """Write no ``.crc`` files on ``file:``, and fork no process to set permissions.

    Where Java or Hadoop differ from what this expects, permissions are set as before.
    """
    jvm = Jvm(session)
    configuration = session._jsc.hadoopConfiguration()
    uri = jvm.java_class("java.net.URI")("file:///")
    shared = jvm.java_class(_HADOOP + "FileSystem").get(uri, configuration)
    shared.setWriteChecksum(False)
    try:
        if shared.getRawFileSystem().getClass().getName() == _HADOOP + "RawLocalFileSystem":
            inner = _forkless(jvm)
            inner.initialize(uri, configuration)
            field = (
                jvm.java_class("java.lang.Class")
                .forName(_HADOOP + "FilterFileSystem")
                .getDeclaredField("fs")
            )
            field.setAccessible(True)
            field.set(shared, inner)
    except Exception:
        _log.debug("Hadoop goes on forking a chmod for each local file.", exc_info=True)


def _forkless(jvm: Jvm) -> Any:
    compiler = jvm.java_class("org.codehaus.janino.SimpleCompiler")()
    compiler.cook(_SOURCE)
    made = compiler.getClassLoader().loadClass(_CLASS)
    none = jvm.array(jvm.java_class("java.lang.Class"), [])
    return made.getConstructor(none).newInstance(jvm.array(jvm.java_class("java.lang.Object"), []))
