"""Lists the files of a directory, and what else is there.

Names that Spark's reader passes over are ignored; whatever else is not read has a reason.
"""

from __future__ import annotations

import os
from typing import Annotated, TypeAlias

import msgspec

from weir.core.types import Count
from weir.storage.file_systems import FileSystems
from weir.storage.filesystem import FileSystem
from weir.storage.paths import is_hadoops_s3, is_local, is_object_store, join

#: A visible name, as for Spark.
_VISIBLE = r"(?:[^._/\x00][^/\x00]*|_[^/\x00]*=[^/\x00]*)"
#: The path of a visible file in the directory, never out of it.
FileName: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"\A{_VISIBLE}(?:/{_VISIBLE})*\Z")]


class FoundFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of the directory."""

    name: FileName
    size: Count
    mtime_ns: int


class Skipped(msgspec.Struct, frozen=True):
    """What is there and is not read."""

    name: str
    why: str


class FileSplit(msgspec.Struct, frozen=True):
    """A file, to be read as a whole."""

    name: FileName
    size: Count = 0
    mtime_ns: int = 0

    @property
    def split_id(self) -> str:
        """The name."""
        return self.name


_DIRECTORY = (
    "it is a directory, whose files are not read: read them with FileSource(recursive=True), or"
    " move it away"
)
_LINK = "it is a symbolic link to a directory, whose files are not read: move them in"
_NO_FILE = "it is not a file: a link that leads nowhere, a pipe, a socket or a device"


def list_files(
    directory: str, stores: FileSystems, *, recursive: bool = False
) -> tuple[list[FoundFile], list[Skipped]]:
    """The visible files of a directory, oldest first, and what else is there.

    ``stores`` reaches a directory that is not local: give the same one each time, since to connect
    costs as much as to list. With ``recursive``, those below other visible directories, too, by
    their relative paths. Raises ``OSError`` or ``StorageError``.
    """
    if is_local(directory):
        found, skipped = _list_disk(directory, recursive)
    else:
        found, skipped = _list_store(stores(directory), directory, recursive)
    found.sort(key=lambda file: (file.mtime_ns, file.name))
    return found, sorted(skipped, key=lambda one: one.name)


def _list_store(
    fs: FileSystem, directory: str, recursive: bool
) -> tuple[list[FoundFile], list[Skipped]]:
    found: list[FoundFile] = []
    skipped: list[Skipped] = []
    left = [""]
    while left:
        below = left.pop()
        for entry in fs.list(join(directory, below).removesuffix("/")):
            name = below + entry.name
            if _is_hidden(entry.name):
                continue
            if not entry.is_directory:
                found.append(FoundFile(name, entry.size, entry.mtime_ns))
            elif recursive:
                left.append(f"{name}/")
            else:
                skipped.append(Skipped(name, _DIRECTORY))
    # In an object store a directory that has no files is not there.
    if not (found or skipped or _is_prefix(directory)) and fs.status(directory) is None:
        raise FileNotFoundError(directory)
    return found, skipped


def _is_prefix(directory: str) -> bool:
    return is_object_store(directory) or is_hadoops_s3(directory)


def _list_disk(directory: str, recursive: bool) -> tuple[list[FoundFile], list[Skipped]]:
    found: list[FoundFile] = []
    skipped: list[Skipped] = []
    left = [""]
    while left:
        below = left.pop()
        try:
            entries = os.scandir(os.path.join(directory, below))  # noqa: PTH118
        except FileNotFoundError:
            if below:
                # It was removed meanwhile.
                continue
            raise
        with entries:
            for entry in entries:
                if _is_hidden(entry.name):
                    continue
                name = below + entry.name
                try:
                    if entry.is_file():
                        status = entry.stat()
                        found.append(FoundFile(name, status.st_size, status.st_mtime_ns))
                    elif recursive and entry.is_dir(follow_symlinks=False):
                        left.append(f"{name}/")
                    else:
                        skipped.append(Skipped(name, _why_skipped(entry, recursive)))
                except FileNotFoundError:
                    # It was removed meanwhile.
                    continue
    return found, skipped


def _is_hidden(name: str) -> bool:
    """Whether Spark's reader passes over a name, too."""
    return name[0] == "." or (name[0] == "_" and "=" not in name) or name.endswith("._COPYING_")


def _why_skipped(entry: os.DirEntry[str], recursive: bool) -> str:
    if not entry.is_dir():
        return _NO_FILE
    return _LINK if recursive else _DIRECTORY
