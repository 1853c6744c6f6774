"""Flink's own programs, as its Python package brings them: the jars of a whole distribution.

``python -m tests.flink.distribution`` fetches them once, 330 MB, into the virtual environment.
There are no start scripts in the package, so the classes are called as those would.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from weir.rest.schema.base import FLINK_VERSION

JARS = Path(sys.prefix) / f"flink-{FLINK_VERSION}"

#: For the client, which starts in seconds, on a machine that may be ten times slower.
_PATIENCE_S = 120.0
_PACKAGE = f"apache-flink-libraries=={FLINK_VERSION}"
#: Java's own packages into which Flink looks, as its configuration says (``env.java.opts.all``).
_OPENED = (
    "java.lang", "java.net", "java.io", "java.nio", "sun.nio.ch", "java.lang.reflect", "java.text",
    "java.time", "java.util", "java.util.concurrent", "java.util.concurrent.atomic",
    "java.util.concurrent.locks",
)  # fmt: skip
_LOG = """
rootLogger.level = ERROR
rootLogger.appenderRef.stderr.ref = Stderr
appender.stderr.name = Stderr
appender.stderr.type = CONSOLE
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c - %m%n
"""


@dataclass(frozen=True)
class Said:
    """How a command of the client ended."""

    code: int
    output: str
    errors: str

    @property
    def story(self) -> str:
        """All of it, for the message of a failed assertion."""
        return f"exit code {self.code}\n{self.output}\n{self.errors}"


class Client:
    """Flink's command line, ``flink`` in its distribution, for the server at one address."""

    def __init__(self, directory: Path, address: str) -> None:
        """``directory``: for its configuration. ``address``: host and port, with a scheme."""
        self._address = address.partition("://")[2]
        self._conf = configuration(directory, {})

    def __call__(self, action: str, *arguments: str) -> Said:
        """Run one command. Raises ``TimeoutExpired`` if it hangs."""
        command = java("org.apache.flink.client.cli.CliFrontend", self._conf)
        done = subprocess.run(
            [*command, action, "-m", self._address, *arguments],
            env={**os.environ, "FLINK_CONF_DIR": str(self._conf)},
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        return Said(done.returncode, done.stdout, done.stderr)


def configuration(directory: Path, keys: dict[str, str]) -> Path:
    """A directory of Flink's configuration, made below this one."""
    made = directory / "flink-conf"
    made.mkdir(exist_ok=True)
    (made / "config.yaml").write_text("".join(f"{key}: {text}\n" for key, text in keys.items()))
    (made / "log4j.properties").write_text(_LOG)
    return made


def java(main: str, conf: Path, *options: str) -> list[str]:
    """The command that runs a class of Flink's."""
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    log = f"-Dlog4j.configurationFile={conf / 'log4j.properties'}"
    quick = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
    return ["java", *quick, *opened, log, *options, "-cp", f"{JARS}/*", main]


def fetch() -> None:
    """Download the package with pip and keep its jars, unless they are there."""
    if JARS.exists():
        return
    with tempfile.TemporaryDirectory(dir=JARS.parent) as scratch:
        wanted = ["--no-deps", "--no-binary", ":all:", "--dest", scratch, _PACKAGE]
        subprocess.run([sys.executable, "-m", "ensurepip"], check=True, stdout=subprocess.DEVNULL)
        pip = [sys.executable, "-m", "pip", "download", "--quiet"]
        subprocess.run([*pip, "--disable-pip-version-check", *wanted], check=True)
        (archive,) = Path(scratch).glob("*.tar.gz")
        whole = Path(scratch) / "lib"
        whole.mkdir()
        with tarfile.open(archive) as files:
            for member in files:
                if member.name.endswith(".jar") and Path(member.name).parent.name == "lib":
                    member.name = Path(member.name).name
                    files.extract(member, whole, filter="data")
        whole.rename(JARS)


if __name__ == "__main__":
    fetch()
