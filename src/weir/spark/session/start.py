"""Starts the JVM and makes the Spark session, with the settings of ``settings.py``."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sys
import tempfile
import threading
from contextlib import contextmanager
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
from weir.spark import yarn
from weir.spark.failures import first_cause
from weir.spark.hadoop import HadoopFileSystem
from weir.spark.java import JvmClasses, hold_classes, outlive_signals
from weir.spark.own_calls import own_calls
from weir.spark.session import class_archive, worker_daemon
from weir.spark.session.adopted import adopt
from weir.spark.session.cluster import MasterWatch
from weir.spark.session.defaults_file import is_submitted, read_defaults_file, read_submitted
from weir.spark.session.environment import check_environment, spark_home
from weir.spark.session.jvm_errors import filtered_errors
from weir.spark.session.light_session import forget_origins, leave_out_pandas, make_default_session
from weir.spark.session.local_files import write_cheaply
from weir.spark.session.reach import IMAGES, is_local_master
from weir.spark.session.settings import (
    CHEAP_SETTINGS,
    DEFAULTS,
    FILE_MANAGER,
    MANAGER_WITHOUT_RENAMES,
    REQUIRED,
    RETAINED,
    RETAINED_MIN,
    SHUFFLE_PARTITIONS,
)
from weir.spark.session.user_modules import workers_find_weir, write_modules
from weir.storage.filesystem import FileSystem
from weir.storage.paths import is_hadoops_s3, join
from weir.storage.paths import is_local as is_local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    from weir.config import Configuration

_JARS = "spark.jars"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
#: The settings in which users give the driver's JVM options.
_JAVA_OPTION_KEYS = (_JAVA_OPTIONS, "spark.driver.defaultJavaOptions")
#: The settings of ``spark-defaults.conf`` that Weir has to know: it sets them itself, or depends on
#: their values.
_FROM_DEFAULTS_FILE = (
    "spark.master",
    "spark.driver.memory",
    _JARS,
    *IMAGES,
    *yarn.KNOWN,
    *_JAVA_OPTION_KEYS,
    *(key for key in DEFAULTS if key != RETAINED),
)
_LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")

_MEBIBYTES = {"k": 1 / 1024, "": 1, "m": 1, "g": 1024, "t": 1024 * 1024}
#: With larger heaps the pauses of a stop-the-world collector grow long.
_SMALL_HEAP_MIB = 8 * 1024

#: How long the end of a run waits for the session to stop: a query that does not stop can block it.
_STOP_S = 60.0

#: Which program forks Python workers. On a cluster it is Spark's own, since its machines need Weir
#: only for Python operators.
_DAEMON = "spark.python.daemon.module"
#: The variable that names the workers' interpreter.
_PYTHON = "PYSPARK_PYTHON"

DEFAULT_MASTER = "local[*]"
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


@dataclass(frozen=True, kw_only=True)
class SessionPlan:
    """A session to be made: its name and its checked settings."""

    name: str
    settings: Mapping[str, str]
    #: The keys among them that the user gave.
    given: frozenset[str]
    #: Whether the session writes local files without checksum files beside them.
    fast_working_directory: bool
    #: The interpreter of the workers.
    python: str
    #: Variables of the JVM that the process itself does not get.
    environment: Mapping[str, str]

    def launch(self) -> None:
        """Start the JVM, unless the process already has a JVM.

        ``create`` would do it too; called earlier on another thread, this saves waiting.
        """
        from pyspark import SparkContext

        if SparkContext._gateway is None:
            with filtered_errors(), _variables(self.environment):
                SparkContext._ensure_initialized(conf=self._conf())
            outlive_signals(SparkContext._gateway)

    def _conf(self) -> SparkConf:
        from pyspark import SparkConf

        conf = SparkConf().setAppName(f"weir: {self.name}")
        for key, value in self.settings.items():
            conf.set(key, value)
        return conf

    def create(self, note: Callable[[str], None] = lambda line: None) -> SparkSession:
        """Make the session, or use the session that the process has; ``note`` gets lines for users.

        Raises ``UnsupportedEnvironmentError`` if the master cannot be reached, and
        ``ConfigurationError`` if the session that is there has an unsuitable setting.
        """
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        leave_out_pandas()
        if SparkContext._active_spark_context is not None:
            hold_classes(SparkContext._gateway)
            session = SparkSession.builder.getOrCreate()
            adopt(session, self.settings, self.given, note)
            return _with_partitions(session)
        builder = SparkSession.builder.appName(f"weir: {self.name}")
        for key, value in self.settings.items():
            builder = builder.config(key, value)
        try:
            self.launch()
            hold_classes(SparkContext._gateway)
            context = SparkContext(conf=self._conf())
            # Spark itself obeys the setting only where it starts the driver's Python.
            context.pythonExec = self.python
            make_default_session(context, self.settings)
            forget_origins(context)
            session = builder.getOrCreate()
        except Exception as error:
            raise UnsupportedEnvironmentError(
                f"Cannot create a Spark session on master {self.settings['spark.master']!r}:"
                f" {first_cause(error)}. Check --master, Java and the cluster."
            ) from error
        if self.fast_working_directory:
            write_cheaply(session)
        return _with_partitions(session)


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Variables for what is started meanwhile; those that the process has already stay.

    What it starts later, such as a job on another cluster, must not inherit them.
    """
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _with_partitions(session: SparkSession) -> SparkSession:
    given: Any = session
    if not given._jsparkSession.sessionState().conf().contains(SHUFFLE_PARTITIONS):
        # Spark's 200 suits a large cluster; a state partition for each core suits every size.
        session.conf.set(SHUFFLE_PARTITIONS, str(session.sparkContext.defaultParallelism))
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

    ``conf`` has the user's ``spark.*`` keys. Spark's own log goes to ``log_file``; None leaves it
    on the console. ``java_options`` come before the user's own, which win. Raises
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
    retained = conf.get(RETAINED, "")
    if retained.isdecimal() and int(retained) < RETAINED_MIN:
        raise ConfigurationError(
            f"{RETAINED} is set to {retained}, but a checkpoint needs files of up to"
            f" {RETAINED_MIN} batches: set at least {RETAINED_MIN}, or remove the setting."
        )
    if master is not None:
        conf = {**conf, "spark.master": master}
    master = conf.get("spark.master") or DEFAULT_MASTER
    # Also local-cluster, whose executors are processes of this machine.
    is_local = master.startswith("local")
    settings = {**DEFAULTS, **(_LOOPBACK if is_local else {})}
    if master == yarn.MASTER:
        settings |= yarn.defaults()
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
        settings[SHUFFLE_PARTITIONS] = str(parallelism)
    environment = {}
    if is_local:
        # Spark would bind to the machine's address, open to the network.
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    python = conf.get(yarn.PYTHON)
    if python is None:
        # Python functions need this interpreter's packages.
        python = environment[_PYTHON] = os.environ.get(_PYTHON, sys.executable)
        if python == sys.executable and is_local_master(master) and workers_find_weir():
            settings.setdefault(_DAEMON, worker_daemon.MODULE)
    given = {*conf, *(() if parallelism is None else (SHUFFLE_PARTITIONS,))}
    return SessionPlan(
        name=name,
        settings=settings,
        given=frozenset(given),
        fast_working_directory=fast_working_directory,
        python=python,
        environment=environment,
    )


def with_defaults_file(conf: Mapping[str, str]) -> dict[str, str]:
    """The user's settings, completed by those of ``spark-defaults.conf`` that Weir has to know.

    Below ``spark-submit`` by those of its command, which has read the file. Spark reads the rest
    itself. Settings that checkpoints depend on are ignored there, since the file is also for other
    applications.
    """
    outer = read_submitted() if is_submitted() else read_defaults_file()
    return {**{key: outer[key] for key in _FROM_DEFAULTS_FILE if key in outer}, **conf}


def java_options_of(conf: Mapping[str, str]) -> str:
    """The options of the driver's JVM in these settings."""
    return " ".join(conf.get(key, "") for key in _JAVA_OPTION_KEYS)


def create_session(*, fast_working_directory: bool, **options: Any) -> SparkSession:
    """Make the process's session, or use its present session, with the options of ``plan_session``.

    Raises what ``plan_session`` and ``SessionPlan.create`` raise.
    """
    return plan_session(fast_working_directory=fast_working_directory, **options).create()


def end_with_jvm(session: SparkSession) -> None:
    """Stop the session and its JVM: the next session in this process gets a JVM of its own.

    A JVM that another program has started, or that has another session by now, is left running.
    """
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    is_newest = SparkContext._active_spark_context is session.sparkContext
    session.stop()
    process = getattr(gateway, "proc", None) if is_newest else None
    if process is not None:
        SparkContext._gateway = SparkContext._jvm = None
        gateway.shutdown()
        # The JVM exits once its standard input has ended.
        process.stdin.close()
        in_background(process.wait)


class LazySession:
    """The session of a run, made when first needed, so bad input is reported without a JVM.

    If the process already has a session (a notebook's), it is used, and left running at the end.
    """

    def __init__(
        self,
        name: str,
        master: str | None,
        configuration: Configuration,
        *,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        """``note`` gets lines for users."""
        self._note = note
        self._name = name
        self._master = master
        self._configuration = configuration
        self._conf = with_defaults_file(configuration.spark_conf())
        self._session: SparkSession | None = None
        #: Made by ``prepare``: it looks at Java and at every jar of Spark.
        self._planned: SessionPlan | None = None
        #: The thread that starts the JVM; None unless ``prepare`` has begun to.
        self._launching: threading.Thread | None = None
        self._is_ours = False
        self._watch: MasterWatch | None = None

    @property
    def conf(self) -> Mapping[str, str]:
        """The user's ``spark.*`` settings, with those of ``spark-defaults.conf``."""
        return self._conf

    @property
    def is_local(self) -> bool:
        """Whether Spark tasks run in the driver's process, and so as its user."""
        from pyspark import SparkContext

        active = SparkContext._active_spark_context
        return is_local_master(self.master if active is None else str(active.master))

    @property
    def master(self) -> str:
        """The master on which a session would be made."""
        return self._master or self._conf.get("spark.master") or DEFAULT_MASTER

    def add_jars(self, jars: Sequence[str]) -> None:
        """Add jars to those of the user. Call it before the session is made or prepared."""
        own = self._conf.get(_JARS, "")
        self._conf = {**self._conf, _JARS: ",".join(filter(None, (own, *jars)))}

    def prepare(self) -> None:
        """Start the JVM in the background, which takes seconds.

        Raises what ``plan_session`` raises; ``get`` raises other errors.
        """
        from pyspark import SparkContext

        if SparkContext._active_spark_context is None:
            self._planned = self._plan()
            self._launching = threading.Thread(
                target=_launch, args=(self._planned,), name="weir-jvm", daemon=True
            )
            self._launching.start()

    def get(self) -> SparkSession:
        """The session; raises what ``create_session`` raises."""
        if self._session is None:
            from pyspark import SparkContext

            if self._launching is not None:
                leave_out_pandas()
                self._launching.join()
            self._is_ours = SparkContext._active_spark_context is None
            with own_calls():
                self._session = (self._planned or self._plan()).create(self._note)
            is_open = self._is_ours and FILE_MANAGER not in self._conf
            if is_open and is_hadoops_s3(self._configuration.value(WORKING_DIR)):
                _rename_nothing(self._session)
        return self._session

    def _plan(self) -> SessionPlan:
        conf = dict(self._conf)
        if self.master == yarn.MASTER and not is_submitted():
            conf |= yarn.distributed(conf, home=spark_home(), note=self._note)
        return plan_session(
            name=self._name,
            master=self._master,
            conf=conf,
            parallelism=self._configuration.value(DEFAULT_PARALLELISM),
            fast_working_directory=self._configuration.value(FAST_WORKING_DIRECTORY),
            log_file=self._log_file(),
            java_options=class_archive.java_options(
                java_options_of(self._conf),
                profile=_profile(self._conf.get("spark.driver.memory", "")),
                archive=self._configuration.value(CLASS_ARCHIVE),
            ),
        )

    def watch_master(self) -> None:
        """Stop the session if it is one of a standalone cluster whose master has forgotten it."""
        session = self.get()
        if str(session.sparkContext.master).startswith("spark://"):
            self._watch = MasterWatch(session, self._note)
            self._watch.start()

    def share_modules(self) -> None:
        """Make the pipeline's own modules importable for the workers of a cluster."""
        if not self.is_local:
            context = self.get().sparkContext
            # Spark's own directory: executors that start later fetch the file too.
            path = Path(str(context._temp_dir), f"weir-{secrets.token_hex(8)}.zip")
            if write_modules(path):
                context.addPyFile(str(path))

    def _log_file(self) -> str | None:
        """``spark.log`` in the working directory, or in a new local one if that is elsewhere.

        None below ``spark-submit``, which has configured the log of its JVM.
        """
        if is_submitted():
            return None
        directory = self._configuration.value(WORKING_DIR)
        if not is_local_path(directory):
            directory = tempfile.mkdtemp(prefix="weir-")
        return join(directory, "spark.log")

    def file_system(self, path: str) -> FileSystem:
        """Hadoop's file system for a URI."""
        return HadoopFileSystem(self.get(), path)

    def close(self) -> None:
        """Stop the session if this run made it. Ignores a JVM that has gone or does not answer."""
        if self._watch is not None:
            self._watch.stop()
        if self._session is not None and self._is_ours:
            context: Any = self._session.sparkContext
            server = context._accumulatorServer
            # One that listens on a socket file has to delete the file before the process ends.
            if server is not None and isinstance(server.server_address, tuple):
                # Its end takes up to two seconds, which nobody needs to wait for.
                in_background(server.shutdown)
                context._accumulatorServer = None
            with contextlib.suppress(Py4JError, OSError, TimeoutError):
                in_background(self._session.stop).result(_STOP_S)
        self._session = None


def _rename_nothing(session: SparkSession) -> None:
    """Let Spark write its files without renames, if the class for that is there."""
    utils = JvmClasses(session.sparkContext).java_class("org.apache.spark.util.Utils")
    if utils.classIsLoadable(MANAGER_WITHOUT_RENAMES):
        session.conf.set(FILE_MANAGER, MANAGER_WITHOUT_RENAMES)


def _profile(memory: str) -> class_archive.JvmProfile:
    """The profile for a driver with this memory, in Spark's notation (``4g``; MiB by default)."""
    given = re.fullmatch(r"(\d+)([kmgt]?)b?", memory.strip().lower())
    mebibytes = 0.0 if given is None else int(given[1]) * _MEBIBYTES[given[2]]
    return (
        class_archive.JvmProfile.LARGE
        if mebibytes > _SMALL_HEAP_MIB
        else class_archive.JvmProfile.LASTING
    )


def _launch(plan: SessionPlan) -> None:
    # Making the session tries again, and reports what goes wrong.
    with contextlib.suppress(Exception):
        plan.launch()


def log_of(session: SparkSession) -> str | None:
    """The path of Spark's own log; None if Weir did not make the session, or set no log file."""
    found = re.search(
        r'-Dweir\.log=([^"]+)"', session.sparkContext.getConf().get(_JAVA_OPTIONS) or ""
    )
    return None if found is None else found[1]


def check_alive(session: SparkSession) -> None:
    """Check that the session's JVM runs and the session is not stopped.

    Raises ``UnsupportedEnvironmentError`` otherwise: no attempt can start in this process.
    """
    try:
        stopped = bool(session.sparkContext._jsc.sc().isStopped())
    except Exception as error:
        raise UnsupportedEnvironmentError(
            "Spark's JVM is gone (killed, or out of memory): run the command again to resume from"
            " the newest completed checkpoint, with more memory if that was the cause (--conf"
            " spark.driver.memory=4g)."
        ) from error
    if stopped:
        raise UnsupportedEnvironmentError(
            "The Spark session was stopped, by the cluster or by the pipeline's own code: run the"
            " command again to resume from the newest completed checkpoint."
        )


def make_working_directory(fs: FileSystem, directory: str, *, private: bool) -> None:
    """Make the job's working directory. Call it before the JVM starts, whose log lies beside it.

    A ``private`` directory is for its owner only, so executors must run as that user. Raises
    ``StorageError`` if the directory cannot be made.
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
