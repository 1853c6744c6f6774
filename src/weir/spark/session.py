"""Makes the Spark session with the settings that Weir's guarantees and speed stand on.

Three groups. *Required*: the state store whose files are immutable and uniquely named (incremental
checkpoints are exact only with it), and Parquet timestamps that Delta readers understand.
*Defaults*: what suits a pipeline and what the user may set otherwise. *Cheap working directory*
(``weir.fast-working-directory``): Spark's log and state files are its only durable copy, so it
writes them with care, forking a ``chmod`` for each file; under Weir they are disposable. Never use
``RawLocalFileSystem`` for that: RocksDB snapshots then fail silently in the background.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from weir.config.options import (
    CLASS_ARCHIVE,
    DEFAULT_PARALLELISM,
    FAST_WORKING_DIRECTORY,
    WORKING_DIR,
)
from weir.errors import ConfigurationError, StorageError, UnsupportedEnvironmentError
from weir.runtime.concurrency import in_background
from weir.spark import class_archive
from weir.spark.environment import check_environment
from weir.spark.hadoop import HadoopFileSystem
from weir.spark.jvm import Jvm
from weir.spark.light_session import make_default_session
from weir.storage.filesystem import FileSystem
from weir.storage.paths import as_spark_path, join, root_of
from weir.storage.paths import is_local as is_local_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    from weir.config import Configuration

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

#: A different value breaks a guarantee, so it is refused.
REQUIRED = {
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.streaming.offsetLog.formatVersion": "1",
}

DEFAULTS = {
    "spark.scheduler.mode": "FAIR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # An idle query asks 100 times a second by default; a twentieth of a second is soon enough for a
    # new file.
    "spark.sql.streaming.pollingDelay": "50ms",
    # State files must outlive the checkpoint that links them (PROTOCOL P4).
    "spark.sql.streaming.minBatchesToRetain": "100",
    # A chain of changelogs is as long as the time between two of Spark's snapshots of the state.
    "spark.sql.streaming.stateStore.maintenanceInterval": "15s",
    # Weir reads its counters from these, at the latest with each view.
    "spark.sql.streaming.numRecentProgressUpdates": "200",
}

CHEAP_SETTINGS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
#: Where users give the driver's JVM options.
_JAVA_OPTION_KEYS = (_JAVA_OPTIONS, "spark.driver.defaultJavaOptions")
_LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")

_MEBIBYTES = {"k": 1 / 1024, "": 1, "m": 1, "g": 1024, "t": 1024 * 1024}
#: Beyond this the pauses of a collector that stops the program grow long.
_SMALL_HEAP_MIB = 8 * 1024

#: How long the end of a run waits for the session to stop: it may hang with a query that does not
#: stop.
_STOP_S = 60.0

_PARTITIONS = "spark.sql.shuffle.partitions"
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


@dataclass(frozen=True, kw_only=True)
class SessionPlan:
    """A session that is to be made: its name and settings, which have been checked."""

    name: str
    settings: Mapping[str, str]

    def launch(self) -> None:
        """Start the JVM, unless the process has one. ``create`` would do it; on a thread of its
        own, this saves waiting."""
        from pyspark import SparkContext

        SparkContext._ensure_initialized(conf=self._conf())

    def _conf(self) -> SparkConf:
        from pyspark import SparkConf

        conf = SparkConf().setAppName(f"weir: {self.name}")
        for key, value in self.settings.items():
            conf.set(key, value)
        return conf

    def create(self) -> SparkSession:
        """Make the session, or take over the process's own.

        Raises ``UnsupportedEnvironmentError`` if the master cannot be reached.
        """
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.appName(f"weir: {self.name}")
        for key, value in self.settings.items():
            builder = builder.config(key, value)
        try:
            if SparkContext._active_spark_context is None:
                make_default_session(SparkContext(conf=self._conf()), self.settings)
            session = builder.getOrCreate()
        except Exception as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UnsupportedEnvironmentError(
                f"No Spark session could be made on master {self.settings['spark.master']!r}:"
                f" {first}. Check --master, Java and the cluster."
            ) from error
        if _PARTITIONS not in self.settings:
            # Spark's 200 suits a large cluster; a state partition for each core suits every size.
            session.conf.set(_PARTITIONS, str(session.sparkContext.defaultParallelism))
        return session


def plan_session(
    *,
    name: str,
    master: str | None,
    conf: Mapping[str, str],
    parallelism: int | None,
    fast_working_directory: bool,
    log_file: str | None,
    java_options: str = "",
) -> SessionPlan:
    """Check and complete the settings of a session.

    ``conf`` are the user's ``spark.*`` keys. Spark's own log goes to ``log_file``; None leaves it
    on the console. ``java_options`` stand before the user's own, which win. Raises
    ``UnsupportedEnvironmentError`` if Java or Spark is missing, and ``ConfigurationError`` if a
    required setting is given another value.
    """
    check_environment()
    for key, value in REQUIRED.items():
        if conf.get(key, value) != value:
            raise ConfigurationError(
                f"{key} is set to {conf[key]!r}, but exact checkpoints need {value!r}: remove the"
                " setting."
            )
    master = master or conf.get("spark.master") or "local[*]"
    is_local = master.startswith(("local", "local-cluster"))
    settings = {**DEFAULTS, **(_LOOPBACK if is_local else {})}
    if fast_working_directory:
        settings |= CHEAP_SETTINGS
    settings |= {**conf, **REQUIRED, "spark.master": master}
    if log_file is not None and "log4j" not in settings.get(_JAVA_OPTIONS, ""):
        quoted = log_file.replace("\\", "\\\\").replace('"', '\\"')
        options = f'-Dlog4j2.configurationFile={_LOG_CONFIGURATION.as_uri()} "-Dweir.log={quoted}"'
        settings[_JAVA_OPTIONS] = f"{settings.get(_JAVA_OPTIONS, '')} {options}".strip()
    if java_options:
        settings[_JAVA_OPTIONS] = f"{java_options} {settings.get(_JAVA_OPTIONS, '')}".strip()
    if parallelism is not None:
        settings[_PARTITIONS] = str(parallelism)
    if is_local:
        # Spark would bind to the machine's address, open to the network.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if "spark.pyspark.python" not in conf:
        # Python functions need this interpreter's packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SessionPlan(name=name, settings=settings)


def create_session(*, fast_working_directory: bool, **options: Any) -> SparkSession:
    """Make (or take over) the process's session, with the options of ``plan_session``; raises what
    that and ``SessionPlan.create`` raise."""
    session = plan_session(fast_working_directory=fast_working_directory, **options).create()
    if fast_working_directory:
        _write_no_crc_files(session)
    return session


class LazySession:
    """The session of a run, made when it is first needed: bad input is found without waiting for a
    JVM.

    A session that the process has already (a notebook's) is used, and left running at the end.
    """

    def __init__(self, name: str, master: str | None, configuration: Configuration) -> None:
        self._name = name
        self._master = master
        self._configuration = configuration
        self._session: SparkSession | None = None
        #: Starts the JVM.
        self._launching: threading.Thread | None = None
        self._is_ours = False
        self._file_systems: dict[str, FileSystem] = {}

    @property
    def is_local(self) -> bool:
        """Whether the tasks run in the driver's process, hence as its user."""
        from pyspark import SparkContext

        active = SparkContext._active_spark_context
        planned = self._master or self._configuration.get("spark.master") or "local[*]"
        return is_local_master(planned if active is None else str(active.master))

    def prepare(self) -> None:
        """Start the JVM beside what else is to be done before ``get``, where errors are raised. It
        takes seconds."""
        from pyspark import SparkContext

        if SparkContext._active_spark_context is None:
            plan = self._plan()
            self._launching = threading.Thread(
                target=_launch, args=(plan,), name="weir-jvm", daemon=True
            )
            self._launching.start()

    def get(self) -> SparkSession:
        """The session; raises what ``create_session`` raises."""
        if self._session is None:
            from pyspark import SparkContext

            if self._launching is not None:
                self._launching.join()
            self._is_ours = SparkContext._active_spark_context is None
            self._session = self._plan().create()
            if self._configuration.value(FAST_WORKING_DIRECTORY):
                _write_no_crc_files(self._session)
        return self._session

    def _plan(self) -> SessionPlan:
        conf = self._configuration.spark_conf()
        return plan_session(
            name=self._name,
            master=self._master,
            conf=conf,
            parallelism=self._configuration.value(DEFAULT_PARALLELISM),
            fast_working_directory=self._configuration.value(FAST_WORKING_DIRECTORY),
            log_file=self._log_file(),
            java_options=class_archive.java_options(
                " ".join(conf.get(key, "") for key in _JAVA_OPTION_KEYS),
                profile=_profile(conf.get("spark.driver.memory", "")),
                archive=self._configuration.value(CLASS_ARCHIVE),
            ),
        )

    def _log_file(self) -> str | None:
        """``spark.log`` in the working directory, if that is a local one."""
        directory = self._configuration.value(WORKING_DIR)
        return join(directory, "spark.log") if is_local_path(directory) else None

    def file_system(self, path: str) -> FileSystem:
        """Hadoop's file system for a URI."""
        root = root_of(path)
        if root not in self._file_systems:
            self._file_systems[root] = HadoopFileSystem(self.get(), path)
        return self._file_systems[root]

    def close(self) -> None:
        """Stop the session, if this run made one, and if its JVM has not gone before."""
        if self._session is not None and self._is_ours:
            with contextlib.suppress(Py4JError, OSError, TimeoutError):
                in_background(self._session.stop).result(_STOP_S)
        self._session = None


def _profile(memory: str) -> class_archive.JvmProfile:
    """What suits a driver of this memory, as Spark writes it (``4g``; MiB without a unit)."""
    given = re.fullmatch(r"(\d+)([kmgt]?)b?", memory.strip().lower())
    mebibytes = 0.0 if given is None else int(given[1]) * _MEBIBYTES[given[2]]
    return (
        class_archive.JvmProfile.LARGE
        if mebibytes > _SMALL_HEAP_MIB
        else class_archive.JvmProfile.LASTING
    )


def _launch(plan: SessionPlan) -> None:
    # Whatever goes wrong is tried, and said, once more where the session is made.
    with contextlib.suppress(Exception):
        plan.launch()


def log_of(session: SparkSession) -> str | None:
    """Where Spark's own log goes; None if the session was not made by Weir, or has no file for
    it."""
    found = re.search(
        r'-Dweir\.log=([^"]+)"', session.sparkContext.getConf().get(_JAVA_OPTIONS) or ""
    )
    return None if found is None else found[1]


def check_alive(session: SparkSession) -> None:
    """Raises ``UnsupportedEnvironmentError`` if the session's JVM has gone: no attempt can begin in
    this process."""
    try:
        stopped = bool(session.sparkContext._jsc.sc().isStopped())
    except Exception as error:
        raise UnsupportedEnvironmentError(
            "Spark's JVM has gone (killed, or out of memory): run the command again to go on from"
            " the newest completed checkpoint, with more memory if that was the cause (--conf"
            " spark.driver.memory=4g)."
        ) from error
    if stopped:
        raise UnsupportedEnvironmentError(
            "The Spark session was stopped, by the cluster or by the pipeline's own code: run the"
            " command again to go on from the newest completed checkpoint."
        )


def is_local_master(master: str) -> bool:
    """Whether driver and tasks are one process."""
    return master == "local" or master.startswith("local[")


def make_working_directory(fs: FileSystem, directory: str, *, private: bool) -> None:
    """Make the job's working directory; ``StorageError`` if that fails. Before the JVM, whose log
    lies beside it.

    ``private``: for its owner alone, which executors must then be.
    """
    try:
        if private:
            fs.make_private_directory(directory)
        else:
            fs.make_directory(directory)
    except StorageError as error:
        raise StorageError(
            f"The working directory {directory} cannot be used (weir.working-dir names it): {error}"
        ) from error


def check_reachable(session: SparkSession, fs: FileSystem, directory: str) -> None:
    """A task writes below the working directory and the driver reads it; ``StorageError`` if that
    fails.

    On a local master, driver and tasks are one process.
    """
    if is_local_master(str(session.sparkContext.master)):
        return
    probe = join(directory, "probe")
    try:
        session.range(1).coalesce(1).write.mode("overwrite").parquet(as_spark_path(probe))
        reached = any(status.name.startswith("part-") for status in fs.list(probe))
    except Exception as error:
        raise StorageError(
            f"The executors cannot write to the working directory {directory}"
            f" ({type(error).__name__}): set weir.working-dir to a directory that the driver and"
            " all executors share."
        ) from error
    finally:
        fs.delete(probe)
    if not reached:
        raise StorageError(
            f"What an executor wrote to the working directory {directory} cannot be seen by the"
            " driver: set weir.working-dir to a directory that the driver and all executors share."
        )


def _write_no_crc_files(session: SparkSession) -> None:
    """Switch off ``.crc`` files on ``file:``: each costs a second file and fork; checkpoints have
    checksums of their own. The file system object is shared by the whole JVM."""
    jvm = Jvm(session)
    uri = jvm.java_class("java.net.URI")("file:///")
    file_system = jvm.java_class("org.apache.hadoop.fs.FileSystem")
    file_system.get(uri, session._jsc.hadoopConfiguration()).setWriteChecksum(False)
