"""From a path to the file system that holds it, and the one spelling in which paths are kept.

A path is kept as an absolute plain path (``/data/x``) or as a URI (``hdfs://nn/x``). What users write (relative, with
``~``, as ``file:///x``, with a slash at the end) goes through ``normalize`` once, where it enters.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from weir.errors import UnsupportedEnvironmentError, invariant
from weir.state.filesystem import FileSystem
from weir.state.local import LocalFileSystem

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


class FileSystems:
    """Finds the file system of a path: local for plain paths and ``file:``, Hadoop's for every other scheme.

    ``hadoop`` gives Hadoop's file system for a URI; None where no Spark session is at hand.
    """

    def __init__(self, hadoop: Callable[[str], FileSystem] | None) -> None:
        self._local = LocalFileSystem()
        self._hadoop = hadoop

    def __call__(self, path: str) -> FileSystem:
        """The file system that holds an absolute path or URI.

        Raises ``UnsupportedEnvironmentError`` for a URI of another scheme if there is no Hadoop at hand.
        """
        scheme = scheme_of(path)
        if scheme in (None, "file"):
            invariant(scheme == "file" or path.startswith("/"), f"{path!r} is not an absolute path")
            return self._local
        if self._hadoop is None:
            raise UnsupportedEnvironmentError(
                f"{path} can only be read through Spark ({scheme}: is not a local file system): use a command"
                " that starts Spark, such as weir run or weir inspect --operator, or copy the files to a local directory."
            )
        return self._hadoop(path)


def scheme_of(path: str) -> str | None:
    """The scheme of a URI in lower case, or None for a plain path."""
    match = _URI.match(path)
    return match.group(1).lower() if match else None


def normalize(path: str) -> str:
    """The spelling in which Weir keeps a path.

    A relative path becomes absolute (under the current directory), ``~`` is expanded, ``file:///x`` becomes ``/x``
    and a slash at the end is removed. Other URIs stay as they are but for that slash.
    """
    scheme = scheme_of(path)
    if scheme == "file":
        path = path[len("file:") :]
        if path.startswith("//"):
            path = path[path.find("/", 2) :] if "/" in path[2:] else "/"
    elif scheme is not None:
        return path if re.fullmatch(r"[^/]+://[^/]*/?", path) else path.rstrip("/")
    absolute = os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 - Path keeps `..`
    return "/" + absolute.lstrip("/")
