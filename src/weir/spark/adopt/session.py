"""The session of a script: made when the script asks for it, with its settings and Weir's.

A running JVM takes no packages, catalogs, extensions or memory, so the script's settings must be
known before it starts: they are, where the script calls ``getOrCreate`` or makes a
``SparkContext``.

1. What the command line sets wins over the script, and the script's other value is reported.
2. A setting on which exact checkpoints depend is refused there with another value. Set later, by
   ``spark.conf.set``, it keeps its value, and that is reported.
3. Packages for another Spark or Scala are refused before the JVM tries to load them.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from weir.config import SPARK_PREFIX, Configuration
from weir.errors import ConfigurationError, PipelineError, invariant
from weir.masking import masked
from weir.spark.adopt.query import Place
from weir.spark.kafka.connector import provide
from weir.spark.session.settings import REQUIRED, SHUFFLE_PARTITIONS
from weir.spark.session.start import LazySession
from weir.storage.filesystem import FileSystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MASTER = "spark.master"
_APP_NAME = "spark.app.name"
_PACKAGES = "spark.jars.packages"
_REMOTE = "spark.remote"
#: The only Scala for which Spark 4 exists.
_SCALA = "2.13"
_GROUP = "org.apache.spark"
#: The name of an artifact that ends with a version of Scala.
_SCALA_NAME = re.compile(r"(?P<name>.+)_(?P<scala>2\.\d+)")
#: The name of an artifact that is for one release of Spark, as Iceberg's are.
_SPARK_NAME = re.compile(r"(?P<before>.*spark-(?:runtime-|extensions-)?)(?P<spark>\d\.\d)")
#: Artifacts that are called differently for Spark 4.
_RENAMED = {"delta-core": "delta-spark"}


class ScriptSession:
    """The one session of a script, and the settings that the script has given it."""

    def __init__(
        self,
        *,
        name: str,
        master: str | None,
        conf: Mapping[str, str | float | bool],
        say: Callable[[str], None],
        artifacts: Sequence[str] = (),
    ) -> None:
        """``name`` is the application's name unless the script gives one.

        ``master`` and ``conf`` are the command line's. ``artifacts`` are those of Spark that the
        script's code needs.
        """
        self._artifacts = artifacts
        self._name = name
        self._master = master
        self._conf = {key: str(value) for key, value in conf.items()}
        self._say = say
        #: Settings of the script, as given last.
        self._script: dict[str, str] = {}
        self._session: LazySession | None = None
        #: Whether the script has asked for it.
        self.was_made = False

    @property
    def session(self) -> SparkSession | None:
        """The session, once the script has asked for it."""
        return None if self._session is None else self._session.get()

    @property
    def app_name(self) -> str | None:
        """The application's name, if the script gives one."""
        return self._script.get(_APP_NAME)

    def make(self, options: Mapping[str, Any], place: Place) -> dict[str, str]:
        """Make the session, or check the settings for the session that there is.

        Returns those of the script's settings that hold. Raises ``PipelineError`` for a setting
        that is refused, and ``UnsupportedEnvironmentError`` if no session can be made.
        """
        given = {key: _text(value) for key, value in options.items()}
        if _REMOTE in given:
            raise PipelineError(
                f"{place}: Spark Connect is not supported, since its client has no plans of its"
                " own: remove remote(...), and give the cluster's master with --master."
            )
        kept = {key: value for key, value in given.items() if self._holds(key, value, place)}
        self._script |= kept
        if self._session is None:
            self._check_packages(place)
            self._session = self._made(place)
            self.was_made = True
        return kept

    def set_later(self, key: str, value: Any, place: Place) -> bool:
        """Whether ``spark.conf.set`` may set this; if not, that is reported."""
        text = _text(value)
        if REQUIRED.get(key, text) != text:
            self._say(
                f"{place}: {key} keeps the value {REQUIRED[key]!r}, on which exact checkpoints"
                " depend."
            )
            return False
        if not self._holds(key, text, place):
            return False
        self._script[key] = text
        return True

    def conf(self) -> dict[str, str]:
        """The script's settings with the values that they have now, for the job that runs."""
        session = self.session
        if session is None:
            return {}
        now = {SHUFFLE_PARTITIONS: "", **self._spark_settings(self._script)}
        return {
            key: found
            for key, value in now.items()
            if key not in self._conf and (found := str(session.conf.get(key, value) or value))
        }

    def file_system(self, path: str) -> FileSystem:
        """Hadoop's file system for a URI, once there is a session."""
        invariant(self._session is not None, "the script has asked for its session")
        return cast("LazySession", self._session).file_system(path)

    def close(self) -> None:
        """Stop the session."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _made(self, place: Place) -> LazySession:
        configuration = Configuration({**self._spark_settings(self._script), **self._conf})
        made = LazySession(self.app_name or self._name, self._master, configuration)
        provide(made, self._artifacts, self._say)
        # A context that is made on the main thread replaces the handler.
        on_main = threading.current_thread() is threading.main_thread()
        interrupt = signal.getsignal(signal.SIGINT) if on_main else None
        try:
            made.get()
        except ConfigurationError as error:
            raise PipelineError(f"{place}: {error}") from error
        finally:
            if interrupt is not None:
                signal.signal(signal.SIGINT, interrupt)
        return made

    @staticmethod
    def _spark_settings(settings: Mapping[str, str]) -> dict[str, str]:
        """Without the keys of connectors and applications, which only the script reads."""
        return {key: text for key, text in settings.items() if key.startswith(SPARK_PREFIX)}

    def _holds(self, key: str, value: str, place: Place) -> bool:
        """Whether the command line leaves this setting to the script; if not, that is reported."""
        wins = self._master if key == _MASTER and self._master else self._conf.get(key)
        if wins is None:
            return True
        if wins != value:
            own, used = masked(f"{key}={value}"), masked(f"{key}={wins}")
            self._say(f"{place}: {own} is replaced by the command line's {used}.")
        return False

    def _check_packages(self, place: Place) -> None:
        given = self._conf.get(_PACKAGES) or self._script.get(_PACKAGES, "")
        for package in filter(None, (one.strip() for one in given.split(","))):
            right = fitting(package)
            if right != package:
                raise PipelineError(
                    f"{place}: the package {package} is for another version of Spark or Scala: use"
                    f" {right}, or give the packages with --packages, which replaces the script's."
                )


def fitting(package: str) -> str:
    """The coordinate of a package for this Spark: the same if it fits, as far as its name says."""
    from pyspark import __version__ as spark

    group, _, rest = package.partition(":")
    artifact, _, version = rest.partition(":")
    named = _SCALA_NAME.fullmatch(artifact)
    if named is None:
        return package
    release = ".".join(spark.split(".")[:2])
    name = named["name"]
    for_spark = _SPARK_NAME.fullmatch(name)
    if for_spark is not None and for_spark["spark"] != release:
        name = f"{for_spark['before']}{release}"
    renamed = _RENAMED.get(name, name)
    if renamed != name:
        version = "VERSION"
    if group == _GROUP and version and not _serves(version, spark):
        version = spark
    return ":".join(filter(None, (group, f"{renamed}_{_SCALA}", version)))


def _serves(version: str, spark: str) -> bool:
    """Whether an artifact of this release serves Spark: the same, or a lower one of its major."""
    numbers = [[int(part) for part in re.findall(r"\d+", text)] for text in (version, spark)]
    return numbers[0][:1] == numbers[1][:1] and numbers[0] <= numbers[1]


def _text(value: Any) -> str:
    """As PySpark passes it on."""
    return str(value).lower() if isinstance(value, bool) else str(value)
