"""``FarPlace``: a place whose jobs read and write below one directory of HDFS."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from hdfs_native import Client
from tests.kit.place import Place

from weir.storage.hdfs import HdfsFileSystem

#: Copies, counts and ranks numbers.
ON_HADOOP = Path(__file__).parent / "pipelines" / "on_hadoop.py"


class Hdfs(Protocol):
    """A running HDFS."""

    @property
    def uri(self) -> str:
        """The file system, such as ``hdfs://127.0.0.1:40711``."""
        ...


class FarPlace:
    """A place and, below one directory of HDFS, what its jobs read and write."""

    def __init__(self, hdfs: Hdfs, place: Place) -> None:
        self.place = place
        self._hdfs = hdfs
        #: As users write it, and as Weir does.
        self.root = f"hdfs:///{place.directory.name}"
        self.full = f"{hdfs.uri}/{place.directory.name}"
        self.fs = HdfsFileSystem(self.full)

    def settings(self) -> tuple[str, ...]:
        """The options of ``weir run`` for its directories."""
        keys = {
            "execution.checkpointing.dir": "checkpoints",
            "execution.checkpointing.savepoint-dir": "savepoints",
            "weir.working-dir": "work",
        }
        pairs = (f"{key}={self.root}/{name}" for key, name in keys.items())
        return tuple(word for pair in pairs for word in ("--conf", pair))

    def environment(self, numbers: str) -> dict[str, str]:
        """What the pipeline reads and writes."""
        return {
            "NUMBERS": numbers,
            "NUMBERS_IN": f"{self.root}/in",
            "NUMBERS_RAW": f"{self.root}/out",
        }

    def arguments(self, kind: str) -> tuple[str, ...]:
        """Those of ``ON_HADOOP``; ``kind``: ``bounded`` or ``unbounded``."""
        return ("--", kind, f"{self.root}/in", f"{self.root}/out")

    def land(self, files: int) -> None:
        """Add files of numbers, each whole and with the time that ``Place.land`` gave it."""
        self.place.land(files)
        client = Client(self._hdfs.uri)
        self.fs.make_directory(f"{self.full}/in")
        for file in sorted((self.place.directory / "in").iterdir()):
            directory = f"/{self.place.directory.name}/in"
            target, hidden = f"{directory}/{file.name}", f"{directory}/.{file.name}"
            if self.fs.status(f"{self._hdfs.uri}{target}") is None:
                self.fs.write(f"{self._hdfs.uri}{hidden}", file.read_bytes())
                when_ms = int(file.stat().st_mtime) * 1000
                client.set_times(hidden, when_ms, when_ms)
                # With its time: once Spark has seen a new one, it ignores files that are old.
                client.rename(hidden, target)

    def fetch(self, name: str) -> Path:
        """A local copy of a directory."""
        target = self.place.directory / name
        target.mkdir(parents=True, exist_ok=True)
        for entry in self.fs.list(f"{self.full}/{name}"):
            if entry.is_directory:
                self.fetch(f"{name}/{entry.name}")
            else:
                data = self.fs.read(f"{self.full}/{name}/{entry.name}")
                (target / entry.name).write_bytes(data)
        return target
