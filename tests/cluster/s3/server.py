"""An S3 server of the tests' own: a gateway over a directory, in a process of its own.

It keeps what S3 promises of conditional puts, and its objects survive its death: they are files.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cluster.hosts.network import Host
from tests.cluster.s3.needed import S3A, SERVER, WHY_NO_SERVER, WHY_NOT
from tests.kit.place import Place
from tests.kit.ports import free_ports
from tests.kit.server_process import ServerProcess

BUCKET = "weir"
_KEY, _SECRET = "weir-tests", "open-sesame-0815"
_REGION = "us-east-1"
_PORT = 9000
_PATIENCE_S = 60.0
_STOP_S = 10.0
#: Puts an object from where the server can be reached.
_PUT = """
import sys
import obstore
from obstore.store import S3Store
obstore.put(S3Store(sys.argv[1]), sys.argv[2], sys.stdin.buffer.read())
"""


class S3Server(ServerProcess):
    """One server with one bucket, whose objects are files below ``objects``."""

    def __init__(self, directory: Path, *, on: Host | None = None) -> None:
        """``on``: the host on which it runs, with its files there; else on this machine."""
        super().__init__("The S3 server", directory, patience_s=_PATIENCE_S, stop_s=_STOP_S)
        self._on = on
        self.address = ("127.0.0.1", free_ports(1)[0]) if on is None else (on.address, _PORT)
        files = directory if on is None else on.own
        #: What lies in the bucket, as this machine sees it.
        self.objects = files / "objects" / BUCKET
        for made in (self.objects, files / "metadata"):
            made.mkdir(parents=True)
            if on is not None:
                for owned in (made, made.parent):
                    os.chown(owned, on.user, on.user)

    @property
    def url(self) -> str:
        """Its endpoint."""
        return "http://{}:{}".format(*self.address)

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a process finds it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": _REGION,
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "NO_PROXY": self.address[0],
        }

    @property
    def settings(self) -> dict[str, str]:
        """The settings by which Spark finds it, and the classes that it needs for that."""
        jars = f"{S3A.directory}/*"
        found = {
            "spark.driver.extraClassPath": jars,
            "spark.executor.extraClassPath": jars,
            "spark.hadoop.fs.s3a.endpoint": self.url,
            "spark.hadoop.fs.s3a.endpoint.region": _REGION,
            "spark.hadoop.fs.s3a.path.style.access": "true",
        }
        return found | {
            f"spark.executorEnv.{name}": value for name, value in self.environment.items()
        }

    def start(self) -> None:
        """Start it on the objects that it has."""
        files = self._directory if self._on is None else Path("/tmp")
        command = [
            *("env", f"ROOT_ACCESS_KEY={_KEY}", f"ROOT_SECRET_KEY={_SECRET}"),
            *(str(SERVER), "--port", "{}:{}".format(*self.address), "--region", _REGION, "--quiet"),
            *("posix", "--sidecar", str(files / "metadata"), str(files / "objects")),
        ]
        self.launch(command if self._on is None else self._on(*command), self._serves)

    def land(self, place: Place, files: int, below: str) -> None:
        """Add files of numbers at ``below``, whose times increase as ``Place.land`` has them."""
        place.land(files)
        for file in sorted((place.directory / "in").iterdir()):
            target = self.objects / below / file.name
            if not target.exists():
                self._put(f"{below}/{file.name}", file.read_bytes())
                os.utime(target, (file.stat().st_mtime, file.stat().st_mtime))

    def _put(self, key: str, data: bytes) -> None:
        command = [sys.executable, "-c", _PUT, BUCKET, key]
        environment = {**os.environ, **self.environment}
        command = command if self._on is None else self._on(*command)
        subprocess.run(command, input=data, env=environment, check=True)

    def _serves(self) -> bool:
        if self._on is not None:
            return self._on.answers(*self.address)
        try:
            socket.create_connection(self.address, timeout=1).close()
        except OSError:
            return False
        return True


@contextmanager
def running_s3() -> Iterator[S3Server]:
    """A running server; its process and files are gone afterwards. Skips the test without one."""
    check_there()
    directory = Path(tempfile.mkdtemp(prefix="weir-s3-"))
    try:
        server = S3Server(directory)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def check_there() -> None:
    """Skip the test without the server or Hadoop's client."""
    if not S3A.are_there:
        pytest.skip(WHY_NOT)
    if not SERVER.exists():
        pytest.skip(WHY_NO_SERVER)
