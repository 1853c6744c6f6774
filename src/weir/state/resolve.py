"""From a path, as ``weir/state/paths.py`` keeps it, to the file system that holds it."""

from __future__ import annotations

from collections.abc import Callable

from weir.errors import UnsupportedEnvironmentError, invariant
from weir.state.filesystem import FileSystem
from weir.state.local import LocalFileSystem
from weir.state.paths import is_local, scheme_of


class FileSystems:
    """Finds the file system of a path: the local one for plain paths, Hadoop's for URIs.

    ``hadoop`` gives Hadoop's file system for a URI; None where no Spark session is at hand.
    """

    def __init__(self, hadoop: Callable[[str], FileSystem] | None) -> None:
        self._local = LocalFileSystem()
        self._hadoop = hadoop

    def __call__(self, path: str) -> FileSystem:
        """The file system that holds an absolute path or URI.

        Raises ``UnsupportedEnvironmentError`` for a URI if there is no Hadoop at hand.
        """
        if is_local(path):
            return self._local
        scheme = scheme_of(path)
        invariant(scheme not in (None, "file"), f"{path!r} is not an absolute path")
        if self._hadoop is None:
            raise UnsupportedEnvironmentError(
                f"{path} can only be read through Spark ({scheme}: is not a local file system): use a command"
                " that starts Spark, such as weir run or weir inspect --operator, or copy the files to a local directory."
            )
        return self._hadoop(path)
