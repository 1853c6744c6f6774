"""YARN: what its nodes get of this machine, and the settings of a job that is meant to last.

Nodes have Java and a Python, and nothing else of a job. Two archives bring the rest. They go to
HDFS once, below ``.weir`` in the user's home directory (``spark.yarn.stagingDir`` names another
place), and YARN keeps them on each node:

- ``spark-4.3.0-<checksum>.zip``: Spark's jars, which Spark would upload at each start;
- ``python3.11-<checksum>.tar.gz``: the Python packages of this process, Weir's among them. Its
  ``bin/python`` is a shell script that starts the node's Python of the same version with them.

The checksum of the jars is that of their content; that of the packages is over the name, size and
time of each file, since it is taken at each start. An archive gets its name when it is whole, and
only if the name is free: a file that YARN hands out to nodes is never replaced.

Whoever names jars (``spark.yarn.archive``, ``spark.yarn.jars``) or an interpreter
(``spark.pyspark.python``, ``PYSPARK_PYTHON``) is obeyed, and no such archive is made.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pwd
import site
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import IO

import msgspec

from weir.errors import ConfigurationError, StorageError, UnsupportedEnvironmentError
from weir.spark import releases
from weir.storage.filesystem import BLOCK_BYTES
from weir.storage.hadoop_site import VARIABLES, default_file_system
from weir.storage.paths import join, name_of, normalize, scheme_of

MASTER = "yarn"
PYTHON = "spark.pyspark.python"
ARCHIVES = "spark.yarn.dist.archives"
_JARS = ("spark.yarn.archive", "spark.yarn.jars")
_STAGING = "spark.yarn.stagingDir"
#: How the settings begin that say where the resource manager is.
_RESOURCE_MANAGER = tuple(
    f"spark.hadoop.yarn.resourcemanager.{what}" for what in ("address", "hostname", "ha.")
)
_FAILURES = "spark.executor.failuresValidityInterval"
_CONF_DIR, _USER_NAME = "HADOOP_CONF_DIR", "HADOOP_USER_NAME"
_EXECUTOR = "spark.executorEnv."
#: The settings of ``spark-defaults.conf`` that decide what nodes get, or that Weir sets too.
KNOWN = (
    *(PYTHON, ARCHIVES, *_JARS, _STAGING, "spark.submit.deployMode"),
    *(_FAILURES, f"{_EXECUTOR}{_CONF_DIR}", f"{_EXECUTOR}{_USER_NAME}"),
)

#: How the settings begin that name files of the machine where a command is given.
NAME_FILES = ("spark.jars", "spark.files", "spark.archives", "spark.submit.", "spark.yarn.dist.")

#: What ``spark-submit`` prints: warnings, and what YARN says of the application.
_LOG = """status = error
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
logger.client.name = org.apache.spark.deploy.yarn.Client
logger.client.level = info
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %m%n
"""

_WEIR = Path(__file__).resolve().parents[1]
#: Where a container finds the packages.
_PLACE = "environment"
_PACKAGES = "site-packages"
#: Spark brings the first two itself.
_LEFT_OUT = frozenset({"pyspark", "py4j", "pip", "setuptools"})
#: Belongs to a source file, and may be made at any time.
_COMPILED = "__pycache__"
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_INTERPRETER = f"""#!/bin/sh
# The node's Python, with the packages beside this file.
here=$(cd "$(dirname "$0")/.." && pwd)
if ! command -v {_VERSION} >/dev/null; then
    echo "weir: error: node $(hostname) has no {_VERSION} on its PATH ($PATH), which the job was" \\
        "started with: install it, or name another with {PYTHON}." >&2
    exit 1
fi
export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$here/{_PACKAGES}"
exec {_VERSION} "$@"
"""


def defaults() -> dict[str, str]:
    """Settings that suit a pipeline on YARN, and that the user may change."""
    environment = _container_environment().items()
    return {
        # Failures that are long past do not count: by default Spark gives up at the fourth executor
        # that two have lost, however long the job ran.
        _FAILURES: "10m",
        **{f"{_EXECUTOR}{name}": value for name, value in environment},
    }


def master_defaults() -> dict[str, str]:
    """The same of a driver in the application master, beside ``defaults``."""
    environment = _container_environment().items()
    return {
        # Spark gives a driver 100 s until it has a session: a name node may be away for longer.
        "spark.yarn.am.waitTime": "10m",
        # Attempts that failed long ago do not count. YARN counts: without the second line, Spark
        # would give up by itself at the cluster's number, however long ago the others failed.
        "spark.yarn.am.attemptFailuresValidityInterval": "1h",
        "spark.hadoop.yarn.resourcemanager.am.max-attempts": "1000000",
        # The job's progress is in the same log.
        "spark.log.level": "WARN",
        # The driver is a Python process too, which is not in the heap.
        "spark.driver.memoryOverhead": "1g",
        **{f"spark.yarn.appMasterEnv.{name}": value for name, value in environment},
    }


def _container_environment() -> dict[str, str]:
    """What Weir's client of HDFS goes by, which is not Java: Spark's has it from Spark."""
    return {
        _CONF_DIR: "./__spark_conf__/__hadoop_conf__",
        _USER_NAME: _user(),
    }


def distributed(
    conf: Mapping[str, str], *, home: Path | None, note: Callable[[str], None]
) -> dict[str, str]:
    """Upload what nodes lack; the settings by which they get it.

    ``conf`` has the user's ``spark.*`` settings, ``home`` is Spark's directory. ``note`` gets lines
    for users. Raises ``ConfigurationError`` if nothing says where YARN is, or the Python packages
    cannot be packed, and ``StorageError`` if an upload fails.
    """
    _check_cluster_is_named(conf)
    wants_jars = home is not None and not any(conf.get(key) for key in _JARS)
    wants_python = not conf.get(PYTHON) and "PYSPARK_PYTHON" not in os.environ
    if not wants_jars and not wants_python:
        return {}
    try:
        staging = _Staging(conf, note)
    except (StorageError, UnsupportedEnvironmentError) as error:
        note(
            "Spark uploads its jars at each start, and the nodes get none of this machine's Python"
            f" packages, since there is no HDFS to keep them: {error}"
        )
        return {}
    settings = {}
    if wants_jars and home is not None:
        jars = sorted((home / "jars").glob("*.jar"))
        settings["spark.yarn.archive"] = staging.put(
            f"spark-{releases.installed_version()}-{_content_of(jars)}.zip",
            lambda file: _write_jars(file, jars),
            what=f"Spark's {len(jars)} jars",
        )
    if wants_python:
        files = dict(_packages(note))
        path = staging.put(
            f"{_VERSION}-{_stamp_of(files)}.tar.gz",
            lambda file: _write_packages(file, files),
            what=f"the Python packages of {sys.prefix}",
        )
        settings[ARCHIVES] = ",".join(filter(None, (conf.get(ARCHIVES), f"{path}#{_PLACE}")))
        settings[PYTHON] = f"./{_PLACE}/bin/python"
    return settings


def _check_cluster_is_named(conf: Mapping[str, str]) -> None:
    """Refuse what would make Spark look for a resource manager on this machine, without end."""
    named = {name: path for name in VARIABLES if (path := os.environ.get(name))}
    if not named:
        raise ConfigurationError(
            f"--master yarn finds its cluster by {' or '.join(VARIABLES)}, but neither is set: name"
            " the directory with yarn-site.xml and core-site.xml."
        )
    if any(Path(path, "yarn-site.xml").is_file() for path in named.values()):
        return
    if not any(key.startswith(_RESOURCE_MANAGER) for key in conf):
        [name, path] = next(iter(named.items()))
        raise ConfigurationError(
            f"--master yarn finds its cluster by yarn-site.xml, but there is none in {path}, which"
            f" {name} names: name the directory that has it."
        )


def deleted_with_the_master(key: str, path: str) -> str:
    """Why a directory with a relative path is refused for a driver in the application master."""
    return (
        f"{key} is {path}, below the application master's own directory, which is deleted with it:"
        f" set it to a directory of HDFS, such as hdfs:///user/me/weir/{name_of(path)}."
    )


def spark_submit(driver: Path, settings: Mapping[str, str], *, home: Path, directory: Path) -> int:
    """Run ``spark-submit``, which prints what YARN says; return its exit code.

    ``driver`` is the Python file that the application master runs, ``home`` is Spark's directory;
    ``directory`` gets files for as long as this takes.
    """
    properties, log = directory / "spark.conf", directory / "log4j2.properties"
    properties.write_text("".join(_lines(settings)), encoding="utf-8")
    log.write_text(_LOG)
    java = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Dlog4j2.configurationFile={log}"
    return subprocess.run(
        [home / "bin/spark-submit", "--properties-file", properties, driver],
        env={**os.environ, "SPARK_SUBMIT_OPTS": java},
        check=False,
    ).returncode


def _lines(settings: Mapping[str, str]) -> Iterator[str]:
    """Java's properties."""
    for key, value in settings.items():
        escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        yield f"{key}={escaped}\n"


class _Staging:
    """The directory of HDFS in which archives are kept."""

    def __init__(self, conf: Mapping[str, str], note: Callable[[str], None]) -> None:
        """Raises ``UnsupportedEnvironmentError`` or ``StorageError`` if there is none."""
        home = normalize(conf.get(_STAGING) or f"{default_file_system() or ''}/user/{_user()}")
        if scheme_of(home) != "hdfs":
            raise UnsupportedEnvironmentError(f"{home} is not on HDFS.")
        try:
            from weir.storage.hdfs import HdfsFileSystem
        except ImportError as error:
            raise UnsupportedEnvironmentError(
                f"{home} needs hdfs-native, which is not installed: pip install 'weir-spark[hdfs]'."
            ) from error
        self._fs = HdfsFileSystem(home)
        self._directory = join(home, ".weir")
        self._note = note

    def put(self, name: str, write: Callable[[IO[bytes]], None], *, what: str) -> str:
        """The path of the archive of this name, which ``write`` makes if it is not there."""
        path = join(self._directory, name)
        if self._fs.status(path) is not None:
            return path
        with tempfile.TemporaryFile() as file:
            write(file)
            self._note(f"uploading {what} to {path} ({file.tell() >> 20} MiB), once")
            file.seek(0)
            self._fs.make_directory(self._directory)
            self._fs.create_blocks(path, iter(lambda: file.read(BLOCK_BYTES), b""))
        return path


def _user() -> str:
    """The user of HDFS, if that does not know better by Kerberos."""
    return os.environ.get(_USER_NAME) or pwd.getpwuid(os.geteuid()).pw_name


def _content_of(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256")
        digest.update(f"{path.name}\0{content.hexdigest()}\0".encode())
    return digest.hexdigest()[:16]


def _write_jars(file: IO[bytes], jars: list[Path]) -> None:
    # Jars are compressed themselves.
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, strict_timestamps=False) as archive:
        for jar in jars:
            archive.write(jar, jar.name)


def _packages(note: Callable[[str], None]) -> Iterator[tuple[str, Path]]:
    """The files of the installed packages, by their names below ``site-packages``, sorted.

    Raises ``ConfigurationError`` for packages that need more than these files.
    """
    if Path(sys.prefix, "conda-meta").is_dir():
        raise ConfigurationError(
            f"The packages of {sys.prefix} need conda's libraries: pack it with conda-pack, and"
            f" name it with --conf {ARCHIVES}=FILE.tar.gz#environment --conf"
            f" {PYTHON}=./environment/bin/python."
        )
    editable = [name for name in _editable() if name != "weir-spark"]
    if editable:
        note(
            f"{', '.join(editable)}: installed in editable mode, so YARN's nodes do not get it"
            " unless the pipeline lies beside it or --py-files names it"
        )
    user = site.getusersitepackages() if site.ENABLE_USER_SITE else ""
    roots = [Path(root) for root in (*site.getsitepackages(), user) if root]
    found: dict[str, Path] = {}
    # Last, since it may be installed in editable mode.
    for root, below in (*((root, root) for root in roots), (_WEIR, _WEIR.parent)):
        for directory, names, files in os.walk(root):
            if Path(directory) == below:
                # Others may have modules of the same names.
                names[:] = [name for name in names if name not in _LEFT_OUT]
            for name in files:
                path = Path(directory, name)
                # A link may lead nowhere.
                if path.is_file():
                    found.setdefault(str(path.relative_to(below)), path)
    yield from sorted(found.items())


def _editable() -> Iterator[str]:
    for one in metadata.distributions():
        origin = one.read_text("direct_url.json")
        if origin and msgspec.json.decode(origin).get("dir_info", {}).get("editable"):
            yield one.metadata["Name"]


def _stamp_of(files: Mapping[str, Path]) -> str:
    digest = hashlib.sha256(_INTERPRETER.encode())
    for name, path in files.items():
        if path.parent.name != _COMPILED:
            status = path.stat()
            digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()[:16]


def _write_packages(file: IO[bytes], files: Mapping[str, Path]) -> None:
    with (
        gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1) as packed,
        # Some installers link packages to a cache of theirs, which nodes lack.
        tarfile.open(fileobj=packed, mode="w|", dereference=True) as archive,
    ):
        interpreter = _INTERPRETER.encode()
        entry = tarfile.TarInfo("bin/python")
        entry.mode, entry.size = 0o755, len(interpreter)
        archive.addfile(entry, io.BytesIO(interpreter))
        for name, path in files.items():
            archive.add(path, f"{_PACKAGES}/{name}", recursive=False)
