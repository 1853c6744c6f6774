"""Failing writes to an object store are aborted, never published (no JVM is needed).

Closing a stream of S3A completes the upload, whatever was written to it. The streams here record
what is done to them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from weir.errors import StorageError
from weir.spark.hadoop import HadoopFileSystem

PATH = "s3a://bucket/chk-1/_metadata"


class Upload:
    """A stream of an object store whose content appears on close."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        self._store = store
        self._path = path
        self._written = b""

    def write(self, data: bytearray) -> None:
        half = len(data) // 2 if self._store.fails else len(data)
        self._written += bytes(data[:half])
        if self._store.fails:
            raise self._store.fails.pop()

    def close(self) -> None:
        self._store.objects[self._path] = self._written

    def abort(self) -> None:
        self._store.aborted.append(self._path)


class ObjectStore:
    """The part of Hadoop's file system that writes need, with the conditional create's builder."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.aborted: list[str] = []
        #: Raised by the next writes, halfway.
        self.fails: list[BaseException] = []
        self._path = ""

    def create(self, path: str, overwrite: bool) -> Upload:
        return Upload(self, path)

    def createFile(self, path: str) -> ObjectStore:
        self._path = path
        return self

    def overwrite(self, value: bool) -> ObjectStore:
        return self

    def must(self, key: str, value: bool) -> ObjectStore:
        return self

    def build(self) -> Upload:
        return Upload(self, self._path)

    def open(self, path: str) -> Any:
        return Source(self.objects[path])

    def getFileStatus(self, path: str) -> Any:
        if path not in self.objects:
            raise OSError(f"java.io.FileNotFoundException: {path}")
        return FoundObject(path, len(self.objects[path]))


class FoundObject:
    """What the store says of an object."""

    def __init__(self, path: str, size: int) -> None:
        self._path = path
        self._size = size

    def getPath(self) -> Any:
        return SimpleNamespace(getName=lambda: self._path.rpartition("/")[2])

    def getLen(self) -> int:
        return self._size

    def isDirectory(self) -> bool:
        return False


class Source:
    """An object that is being read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.closed = False

    def close(self) -> None:
        self.closed = True


class IOUtils:
    """The part of Hadoop's class in use: it copies, and closes nothing."""

    @staticmethod
    def copyBytes(source: Source, target: Upload, conf: object, close: bool) -> None:
        assert not close
        target.write(bytearray(source.data))


@pytest.fixture
def store() -> ObjectStore:
    return ObjectStore()


@pytest.fixture
def fs(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> HadoopFileSystem:
    """S3A over the store."""
    made = HadoopFileSystem.__new__(HadoopFileSystem)
    jvm = SimpleNamespace(java_class=lambda name: IOUtils)
    for name, value in {"_scheme": "s3a", "_fs": store, "_conf": None, "_jvm": jvm}.items():
        monkeypatch.setattr(made, name, value, raising=False)
    monkeypatch.setattr(made, "_path", lambda path: path)
    return made


OPERATIONS: dict[str, Callable[[HadoopFileSystem], object]] = {
    "create": lambda fs: fs.create(PATH, b"content"),
    "write": lambda fs: fs.write(PATH, b"content"),
    "copy": lambda fs: fs.link_or_copy("s3a://bucket/source", PATH),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_could_not_be_written_to_the_end_is_aborted(
    fs: HadoopFileSystem, store: ObjectStore, operation: str
) -> None:
    """A truncated file must not appear under its name, be it a checkpoint's metadata or a record
    (P17)."""
    store.objects["s3a://bucket/source"] = b"content"
    before = dict(store.objects)
    store.fails = [OSError("connection reset")]
    with pytest.raises(StorageError, match="connection reset"):
        OPERATIONS[operation](fs)
    assert (store.objects, store.aborted) == (before, [PATH])


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_was_written_to_the_end_is_published(
    fs: HadoopFileSystem, store: ObjectStore, operation: str
) -> None:
    """Closing the stream publishes all of it."""
    store.objects["s3a://bucket/source"] = b"content"
    OPERATIONS[operation](fs)
    assert (store.objects[PATH], store.aborted) == (b"content", [])


def test_a_write_that_is_interrupted_is_aborted_too(
    fs: HadoopFileSystem, store: ObjectStore
) -> None:
    """Ctrl-C during an upload publishes nothing."""
    store.fails = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        fs.write(PATH, b"content")
    assert (store.objects, store.aborted) == ({}, [PATH])
