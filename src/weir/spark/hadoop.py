"""Hadoop's file systems (``hdfs:``, ``s3a:`` and others) through Spark's own configuration and JVM.

The arbitrating create (PROTOCOL P17): on ``hdfs:`` a temporary file is renamed without overwriting
(``FileContext.rename`` with the option NONE fails if the target exists); on ``s3a:`` the object is
put with ``If-None-Match`` (``createFile`` with ``fs.option.create.conditional.overwrite``). A file
system with neither is refused. On these file systems a closed file is as durable as they promise,
so ``sync`` does nothing.

A partly written file is never visible under its name. On an object store, closing a stream
publishes the object, whatever was written to it, so a stream that could not be written to the end
is aborted (Hadoop's ``Abortable``) and not closed. Elsewhere a file is written under a temporary
name and renamed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from weir.errors import StorageError, UnsupportedEnvironmentError
from weir.spark.java import Jvm
from weir.storage.filesystem import BLOCK_BYTES, CreateResult, FileStatus
from weir.storage.paths import join, parent, scheme_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RENAME_SCHEMES = frozenset({"hdfs", "viewfs", "file"})
_CONDITIONAL_PUT_SCHEMES = frozenset({"s3a"})
_CONDITIONAL_CREATE = "fs.option.create.conditional.overwrite"
#: Writes the content to an open stream.
_Fill: TypeAlias = Callable[[Any], object]


def default_file_system(session: SparkSession) -> str:
    """``fs.defaultFS``, on which Spark resolves plain paths."""
    conf: Any = session._jsc.hadoopConfiguration()
    return str(conf.get("fs.defaultFS"))


class HadoopFileSystem:
    """One Hadoop file system. The module's docstring says how it arbitrates."""

    def __init__(self, session: SparkSession, uri: str) -> None:
        """Raises ``UnsupportedEnvironmentError`` if the scheme cannot arbitrate.

        Raises ``StorageError`` if the file system cannot be reached.
        """
        self._jvm = Jvm(session)
        self._conf: Any = session._jsc.hadoopConfiguration()
        self._scheme = scheme_of(uri)
        if self._scheme not in _RENAME_SCHEMES | _CONDITIONAL_PUT_SCHEMES:
            raise UnsupportedEnvironmentError(
                f"{uri} cannot hold checkpoints: the file system {self._scheme!r} has no"
                " conditional create that Weir knows. Use a local path, hdfs: or s3a:."
            )
        try:
            self._fs: Any = self._class("FileSystem").get(self._path(uri).toUri(), self._conf)
        except Exception as error:
            raise _failure("reach", uri, error) from error

    @property
    def acts_late(self) -> bool:
        """Whether it is an object store."""
        return self._scheme in _CONDITIONAL_PUT_SCHEMES

    @property
    def transfers(self) -> int:
        """One: each block passes through the same gateway."""
        return 1

    def create(self, path: str, data: bytes) -> CreateResult:
        """Create the file with this content unless the name is taken."""
        try:
            if self._scheme in _CONDITIONAL_PUT_SCHEMES:
                builder = self._fs.createFile(self._path(path)).overwrite(True)
                _publish(builder.must(_CONDITIONAL_CREATE, True).build(), _content((data,)))
            else:
                self._rename_new(path, "NONE", _content((data,)))
        except Exception as error:
            if _is_taken(error):
                return CreateResult.ALREADY_EXISTS
            raise _failure("create", path, error) from error
        return CreateResult.CREATED

    def write(self, path: str, data: bytes) -> None:
        """Create or replace the file atomically: on an object store by a put, else by a rename."""
        self.write_blocks(path, (data,))

    def write_blocks(self, path: str, blocks: Iterable[bytes]) -> None:
        """Create or replace the file atomically, block by block."""
        try:
            self._replace(path, _content(blocks))
        except StorageError:
            # From ``blocks``.
            raise
        except Exception as error:
            raise _failure("write", path, error) from error

    def read(self, path: str) -> bytes:
        """The content. Raises ``FileNotFoundError`` if there is no such file."""
        return self._read(path, None)

    def blocks(self, path: str) -> Iterator[bytes]:
        """The content in blocks. Raises ``FileNotFoundError`` if there is no such file."""
        with self._opened(path) as stream:
            while block := bytes(stream.readNBytes(BLOCK_BYTES)):
                yield block

    def read_end(self, path: str, size: int) -> bytes:
        """The last ``size`` bytes. Raises ``FileNotFoundError`` if there is no such file."""
        return self._read(path, size)

    def status(self, path: str) -> FileStatus | None:
        """What is at the path; None if nothing is."""
        try:
            return _status(self._fs.getFileStatus(self._path(path)))
        except Exception as error:
            if "FileNotFoundException" in str(error):
                return None
            raise _failure("look at", path, error) from error

    def is_link(self, path: str) -> bool:
        """Always False: ``hdfs:`` has links switched off, and ``s3a:`` has none."""
        return False

    def list(self, path: str) -> list[FileStatus]:
        """Entries of a directory, sorted by name; empty if there is no such directory."""
        try:
            entries = [_status(entry) for entry in self._fs.listStatus(self._path(path))]
        except Exception as error:
            if "FileNotFoundException" in str(error):
                return []
            raise _failure("list", path, error) from error
        return sorted(entries, key=lambda entry: entry.name)

    def make_directory(self, path: str, *, below: str | None = None) -> None:
        """Make the directory and its parents, except ``below``, which must exist."""
        try:
            if below is not None:
                self._fs.getFileStatus(self._path(below))
            self._fs.mkdirs(self._path(path))
        except Exception as error:
            raise _failure("make the directory", path, error) from error

    def make_private_directory(self, path: str) -> None:
        """Make the directory and its parents. The store decides who may read it."""
        self.make_directory(path)

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with everything below it."""
        try:
            self._fs.delete(self._path(path), True)
        except Exception as error:
            raise _failure("delete", path, error) from error

    def delete_files(self, paths: Sequence[str]) -> None:
        """Delete files."""
        for path in paths:
            self.delete(path)

    def rename(self, source: str, target: str) -> None:
        """Move a file or directory; a target file is replaced."""
        try:
            if self._scheme in _CONDITIONAL_PUT_SCHEMES:
                self._move(source, target)
            else:
                self._rename(source, target, "OVERWRITE")
        except Exception as error:
            raise _failure("rename", source, error) from error

    def link_or_copy(self, source: str, target: str) -> bool:
        """Copy the file, unless a target of the same size exists; always False."""
        found, there = self.status(source), self.status(target)
        if found is None:
            raise StorageError(f"{source} vanished before it could be copied.")
        if there is not None and (there.size, there.is_directory) == (found.size, False):
            return False
        try:
            self._copy(source, target)
        except Exception as error:
            raise _failure("copy", source, error) from error
        return False

    def checksum(self, path: str) -> tuple[int, str]:
        """Size in bytes and ``crc32:`` checksum of the content."""
        checksum = self._jvm.java_class("java.util.zip.CRC32")()
        try:
            with self._opened(path) as stream:
                checked = self._jvm.java_class("java.util.zip.CheckedInputStream")(stream, checksum)
                nowhere = self._jvm.java_class("java.io.OutputStream").nullOutputStream()
                size = int(checked.transferTo(nowhere))
        except FileNotFoundError as error:
            raise StorageError(f"{path} has vanished.") from error
        return size, f"crc32:{int(checksum.getValue()):08x}"

    def real_path(self, path: str) -> str:
        """The path itself: there are no links here."""
        return path

    def sync(self, files: Iterable[str]) -> None:
        """Do nothing: a closed file is durable here."""

    def _read(self, path: str, last: int | None) -> bytes:
        """The content, or the ``last`` bytes of it."""
        with self._opened(path) as stream:
            if last is not None:
                size = self._fs.getFileStatus(self._path(path)).getLen()
                stream.seek(max(0, size - last))
            return bytes(stream.readAllBytes())

    @contextmanager
    def _opened(self, path: str) -> Iterator[Any]:
        """The file's input stream, which is closed at the end.

        Raises ``FileNotFoundError`` and ``StorageError``.
        """
        try:
            stream = self._fs.open(self._path(path))
            try:
                yield stream
            finally:
                stream.close()
        except Exception as error:
            if "FileNotFoundException" in str(error):
                raise FileNotFoundError(path) from error
            raise _failure("read", path, error) from error

    def _replace(self, path: str, content: _Fill) -> None:
        """Create or replace a file; it never shows part of its content."""
        if self._scheme in _CONDITIONAL_PUT_SCHEMES:
            _publish(self._fs.create(self._path(path), True), content)
        else:
            self._rename_new(path, "OVERWRITE", content)

    def _copy(self, source: str, target: str) -> None:
        """Create or replace a file with the content of another."""
        content = self._fs.open(self._path(source))
        try:
            # The last argument says to close neither stream.
            copy = self._jvm.java_class("org.apache.hadoop.io.IOUtils").copyBytes
            self._replace(target, lambda stream: copy(content, stream, self._conf, False))
        finally:
            content.close()

    def _move(self, source: str, target: str) -> None:
        """Rename in an object store, where nothing that is there is ever gone for a moment.

        Hadoop's OVERWRITE would delete the target, and then look for the source. A driver that was
        cut off in between, while another one renamed the same file, would delete what that has
        committed (PROTOCOL P18). Without the option it refuses a target, and deletes none.
        """
        old = self._path(source)
        if self.status(target) is None and self._fs.rename(old, self._path(target)):
            return
        self._copy(source, target)
        self._fs.delete(old, False)

    def _rename_new(self, path: str, option: str, content: _Fill) -> None:
        """Write a temporary file and rename it to ``path``; delete it if that fails."""
        temporary = self._temporary(path)
        try:
            stream = self._fs.create(self._path(temporary), True)
            try:
                content(stream)
            finally:
                stream.close()
            self._rename(temporary, path, option)
        except BaseException:
            with suppress(Exception):
                self._fs.delete(self._path(temporary), False)
            raise

    def _rename(self, source: str, target: str, option: str) -> None:
        rename = self._class("Options$Rename")
        options = self._jvm.array(rename, [getattr(rename, option)])
        # ``FileContext`` knows no default name node.
        old, new = (self._fs.makeQualified(self._path(path)) for path in (source, target))
        context = self._class("FileContext").getFileContext(new.toUri(), self._conf)
        context.rename(old, new, options)

    def _temporary(self, path: str) -> str:
        return join(parent(path), f".weir.{uuid.uuid4()}.tmp")

    def _path(self, path: str) -> Any:
        return self._class("Path")(path)

    def _class(self, name: str) -> Any:
        return self._jvm.java_class(f"org.apache.hadoop.fs.{name}")


def _content(blocks: Iterable[bytes]) -> _Fill:
    def fill(stream: Any) -> None:
        for block in blocks:
            stream.write(bytearray(block))

    return fill


def _publish(stream: Any, content: _Fill) -> None:
    """Write an object and close the stream, which publishes it; abort it if the write fails."""
    try:
        content(stream)
    except BaseException:
        with suppress(Exception):
            stream.abort()
        raise
    stream.close()


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
    cause = next(
        (line for line in lines if "Exception" in line), lines[0] if lines else type(error).__name__
    )
    return StorageError(
        f"Could not {what} {path}: {cause.strip()}. Check the path and spark.hadoop.* settings."
    )
