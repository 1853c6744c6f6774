"""Hadoop's file systems (``hdfs:``, ``s3a:`` and others) through Spark's own configuration and JVM.

The arbitrating create (PROTOCOL P17): on ``hdfs:`` a temporary file is renamed without overwriting
(``FileContext.rename`` with the option NONE fails if the target is there); on ``s3a:`` the object is put with
``If-None-Match`` (``createFile`` with ``fs.option.create.conditional.overwrite``). A file system without one of the
two is refused. What is closed on these file systems is as durable as they promise, so ``sync`` adds nothing.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from weir.errors import StorageError, UnsupportedEnvironmentError
from weir.sinks.staging import is_local
from weir.spark.jvm import Jvm
from weir.state.filesystem import CreateResult, FileStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RENAME_SCHEMES = frozenset({"hdfs", "viewfs", "file"})
_CONDITIONAL_PUT_SCHEMES = frozenset({"s3a"})
_CONDITIONAL_CREATE = "fs.option.create.conditional.overwrite"


def as_spark_path(path: str) -> str:
    """The path for Spark, which would look a plain one up on Hadoop's default file system."""
    return f"file://{path}" if is_local(path) else path


class HadoopFileSystem:
    """One Hadoop file system; the module's docstring says how it arbitrates."""

    def __init__(self, session: SparkSession, uri: str) -> None:
        """Raises ``UnsupportedEnvironmentError`` if the scheme cannot arbitrate, ``StorageError`` if out of reach."""
        self._jvm = Jvm(session)
        self._conf: Any = session._jsc.hadoopConfiguration()
        self._scheme = uri.split(":", 1)[0].lower()
        if self._scheme not in _RENAME_SCHEMES | _CONDITIONAL_PUT_SCHEMES:
            raise UnsupportedEnvironmentError(
                f"{uri} cannot hold checkpoints: the file system {self._scheme!r} has no operation known to Weir"
                " that creates a file only if it is not there. Use a local path, hdfs: or s3a:."
            )
        try:
            self._fs: Any = self._class("FileSystem").get(self._uri(uri), self._conf)
        except Exception as error:
            raise _failure("reach", uri, error) from error

    def create(self, path: str, data: bytes) -> CreateResult:
        """Create the file with this content unless the name is taken."""
        try:
            if self._scheme in _CONDITIONAL_PUT_SCHEMES:
                self._put_if_absent(path, data)
            else:
                self._rename_if_absent(path, data)
        except Exception as error:
            if _is_taken(error):
                return CreateResult.ALREADY_EXISTS
            raise _failure("create", path, error) from error
        return CreateResult.CREATED

    def write(self, path: str, data: bytes) -> None:
        """Create or replace the file. An object store replaces atomically; elsewhere a rename does."""
        try:
            if self._scheme in _CONDITIONAL_PUT_SCHEMES:
                self._put(path, data)
            else:
                temporary = self._temporary(path)
                self._put(temporary, data)
                self._rename(temporary, path, "OVERWRITE")
        except Exception as error:
            raise _failure("write", path, error) from error

    def read(self, path: str) -> bytes:
        """The content. Raises ``FileNotFoundError`` if there is no such file."""
        try:
            stream = self._fs.open(self._path(path))
            try:
                return bytes(self._jvm.java_class("org.apache.commons.io.IOUtils").toByteArray(stream))
            finally:
                stream.close()
        except Exception as error:
            if "FileNotFoundException" in str(error):
                raise FileNotFoundError(path) from error
            raise _failure("read", path, error) from error

    def status(self, path: str) -> FileStatus | None:
        """What is at the path, or None."""
        try:
            return _status(self._fs.getFileStatus(self._path(path)))
        except Exception as error:
            if "FileNotFoundException" in str(error):
                return None
            raise _failure("look at", path, error) from error

    def list(self, path: str) -> list[FileStatus]:
        """Entries of a directory, sorted by name; empty if there is no such directory."""
        try:
            entries = [_status(entry) for entry in self._fs.listStatus(self._path(path))]
        except Exception as error:
            if "FileNotFoundException" in str(error):
                return []
            raise _failure("list", path, error) from error
        return sorted(entries, key=lambda entry: entry.name)

    def make_directory(self, path: str) -> None:
        """Make the directory and its parents."""
        try:
            self._fs.mkdirs(self._path(path))
        except Exception as error:
            raise _failure("make the directory", path, error) from error

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with all below it."""
        try:
            self._fs.delete(self._path(path), True)
        except Exception as error:
            raise _failure("delete", path, error) from error

    def rename(self, source: str, target: str) -> None:
        """Move a file or directory; a target file is replaced."""
        try:
            self._rename(source, target, "OVERWRITE")
        except Exception as error:
            raise _failure("rename", source, error) from error

    def link_or_copy(self, source: str, target: str) -> bool:
        """Copy the file within the file system (there are no links); always False."""
        try:
            self._class("FileUtil").copy(
                self._fs, self._path(source), self._fs, self._path(target), False, True, self._conf
            )
        except Exception as error:
            raise _failure("copy", source, error) from error
        return False

    def checksum(self, path: str) -> tuple[int, str]:
        """Size in bytes and ``crc32:`` checksum of the content."""
        try:
            data = self.read(path)
        except FileNotFoundError as error:
            raise StorageError(f"{path} has vanished.") from error
        return len(data), f"crc32:{zlib.crc32(data):08x}"

    def sync(self, files: Iterable[str]) -> None:
        """Nothing to do: a closed file is durable here."""

    def _put_if_absent(self, path: str, data: bytes) -> None:
        builder = self._fs.createFile(self._path(path)).overwrite(True).must(_CONDITIONAL_CREATE, True)
        self._fill(builder.build(), data)

    def _rename_if_absent(self, path: str, data: bytes) -> None:
        temporary = self._temporary(path)
        self._put(temporary, data)
        try:
            self._rename(temporary, path, "NONE")
        finally:
            self._fs.delete(self._path(temporary), False)

    def _rename(self, source: str, target: str, option: str) -> None:
        rename = self._class("Options$Rename")
        options = self._jvm.array(rename, [getattr(rename, option)])
        context = self._class("FileContext").getFileContext(self._uri(target), self._conf)
        context.rename(self._path(source), self._path(target), options)

    def _put(self, path: str, data: bytes) -> None:
        self._fill(self._fs.create(self._path(path), True), data)

    def _fill(self, stream: Any, data: bytes) -> None:
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()

    def _temporary(self, path: str) -> str:
        parent, _, name = path.rpartition("/")
        return f"{parent}/.{name}.{uuid.uuid4()}.tmp"

    def _path(self, path: str) -> Any:
        return self._class("Path")(path)

    def _uri(self, uri: str) -> Any:
        return self._jvm.java_class("java.net.URI")(uri)

    def _class(self, name: str) -> Any:
        return self._jvm.java_class(f"org.apache.hadoop.fs.{name}")


def _status(entry: Any) -> FileStatus:
    is_directory = bool(entry.isDirectory())
    size = 0 if is_directory else int(entry.getLen())
    return FileStatus(name=str(entry.getPath().getName()), size=size, is_directory=is_directory)


def _is_taken(error: Exception) -> bool:
    text = str(error)
    return "FileAlreadyExistsException" in text or (
        "412" in text and "PreconditionFailed" in text.replace(" ", "")
    )


def _failure(what: str, path: str, error: Exception) -> StorageError:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    cause = next((line for line in lines if "Exception" in line), lines[0] if lines else type(error).__name__)
    return StorageError(
        f"Could not {what} {path}: {cause.strip()}. Check the path and spark.hadoop.* settings."
    )
