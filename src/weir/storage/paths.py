"""Paths: the one module that parses, joins and compares them.

A path is kept in one of two spellings, which need no further parsing::

    /data/x                      local: absolute and plain; every character but / is literal
    hdfs://nn/x, s3://bucket/x   elsewhere: a URI, whose path is taken literally as well
                                 (``%20`` is not a blank)

What users write goes through ``normalize`` once, where it enters: relative paths, ``~/x``,
``file:/x`` and ``file:///x``, ``hdfs:/x`` and ``hdfs:///x`` (on Hadoop's default name node, which
``HADOOP_CONF_DIR`` names), ``..`` and trailing slashes. A string that cannot be a path, or that
JSON, Python and the JVM do not all represent (one that is not UTF-8), is refused there with an
explanation.

Symbolic links can give one place two spellings. Paths are stored as they were written, so that a
link may be moved together with its target; but whenever two paths are *compared*, and before
anything is deleted for a user, links are resolved (``real``, ``is_same``, ``is_within``).

The snapshot that a job starts from is stored as its real directory: a link such as ``latest`` may
name another snapshot tomorrow.
"""

from __future__ import annotations

import os
import posixpath
import re
import tempfile

from weir.errors import StorageError
from weir.storage.hadoop_site import default_file_system

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
#: In these schemes a bucket or container takes the place of the host, and there is no default.
_WITH_BUCKETS = frozenset({"s3", "s3a", "s3n", "gs", "az", "abfs", "abfss", "wasb", "wasbs"})
#: The schemes of ``ObjectStoreFileSystem``.
_OBJECT_STORES = frozenset({"s3", "gs", "az"})
#: Hadoop's name of S3. Weir reaches it as ``s3:``, too, by the environment's credentials.
_HADOOPS_S3 = "s3a"
#: The schemes, beside ``file``, that Weir reaches without Spark; all others are Hadoop's.
_WITHOUT_SPARK = _OBJECT_STORES | {"hdfs", _HADOOPS_S3}
#: Options with which Spark reads every file that it is given, or fails: a path is not a glob (a
#: directory may be named ``[1]``), and no file is skipped, although the user's settings may let
#: sources skip some.
READ_EACH = {
    "__globPaths__": "false",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
}


def normalize(path: str) -> str:
    """The spelling in which Weir keeps a path; relative paths start at the current directory.

    Raises ``StorageError`` for a string that cannot be a path.
    """
    if not path:
        raise StorageError("A path is empty: specify a file or directory.")
    _check_text(path)
    scheme = scheme_of(path)
    if scheme is None:
        return _plain(path)
    authority, below = _split(path.partition(":")[2])
    if scheme == "file":
        if authority not in ("", "localhost"):
            raise StorageError(
                f"{path!r} names a file on host {authority!r}: use file:/// and the path."
            )
        return _plain(below or "/")
    if not authority and scheme in _WITH_BUCKETS:
        raise StorageError(f"{path!r} has no bucket: use {scheme}://BUCKET/PATH.")
    if not authority:
        default = default_file_system() or ""
        authority = default.partition("://")[2] if scheme_of(f"{default}/") == scheme else ""
    return f"{scheme}://{authority}{_collapsed(below)}"


def scheme_of(path: str) -> str | None:
    """The scheme of a URI in lower case, or None for a plain path."""
    match = _SCHEME.match(path)
    return match[1].lower() if match else None


def is_local(path: str) -> bool:
    """Whether a path in its kept spelling is on the local file system."""
    return path.startswith("/")


def is_object_store(path: str) -> bool:
    """Whether a path is in an object store that Weir reaches without Spark."""
    return scheme_of(path) in _OBJECT_STORES


def is_hadoops_s3(path: str) -> bool:
    """Whether a path is in S3 by the name that Hadoop's client has for it."""
    return scheme_of(path) == _HADOOPS_S3


def needs_spark(path: str) -> bool:
    """Whether only Spark's client reaches the file system of a path."""
    return not is_local(path) and scheme_of(path) not in _WITHOUT_SPARK


def root_of(path: str) -> str:
    """The file system of a URI: ``hdfs://nn`` of ``hdfs://nn/x``."""
    return "/".join(path.split("/", 3)[:3])


def join(base: str, *names: str) -> str:
    """``base/name/...``."""
    return "/".join((base.removesuffix("/"), *names))


def parent(path: str) -> str:
    """The directory that holds what is at the path."""
    return path.rpartition("/")[0] or "/"


def name_of(path: str) -> str:
    """The last name of the path."""
    return path.rpartition("/")[2]


def is_utf8(name: str) -> bool:
    """Whether the text can be encoded in UTF-8: the operating system allows names of any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def stays_below(path: str) -> bool:
    """Whether a relative path leads to something below the directory that it is joined to."""
    return all(part not in ("", ".", "..") for part in path.split("/"))


def real(path: str) -> str:
    """The path without symbolic links, as far as it exists. Only local file systems have them."""
    return os.path.realpath(path) if is_local(path) else path


def is_same(path: str, other: str) -> bool:
    """Whether two paths name the same place."""
    return real(path) == real(other)


def is_within(path: str, directory: str) -> bool:
    """Whether the path is this directory, or lies below it."""
    return lies_in(real(path), real(directory))


def lies_in(path: str, directory: str) -> bool:
    """``is_within`` for two real paths."""
    return path == directory or path.startswith(join(directory, ""))


def temporary_directory(
    prefix: str, *, within: str | None = None
) -> tempfile.TemporaryDirectory[str]:
    """A new temporary directory. Raises ``StorageError`` if none can be made."""
    try:
        return tempfile.TemporaryDirectory(prefix=prefix, dir=within)
    except OSError as error:
        raise StorageError(
            f"Cannot create a temporary directory ({error.strerror or error}): set TMPDIR to a"
            " writable directory with a short path."
        ) from error


def as_spark_path(path: str) -> str:
    """The path for Spark, which resolves plain paths on Hadoop's default file system."""
    return f"file://{path}" if is_local(path) else path


def as_delta_path(path: str) -> str:
    """The path for delta-rs, which has one scheme for S3."""
    return re.sub(r"^s3[an]://", "s3://", path)


def _split(rest: str) -> tuple[str, str]:
    """Split what follows the scheme of a URI into authority and path."""
    if not rest.startswith("//"):
        return "", rest
    authority, slash, below = rest[2:].partition("/")
    return authority, slash + below


def _plain(path: str) -> str:
    """A local path, absolute and without ``~``, ``..`` and double slashes."""
    if re.match("file:", path, re.IGNORECASE):
        raise StorageError(
            f"{path!r} is a URI without a path: use file:/// and an absolute path, or drop file:."
        )
    expanded = os.path.expanduser(path)  # noqa: PTH111 - Path.expanduser raises where there is no home
    if expanded.startswith("~"):
        raise StorageError(
            f"{path!r} starts with a home directory that does not exist: use the full path, or"
            f" ./{path}."
        )
    try:
        found = _collapsed(os.path.abspath(expanded))  # noqa: PTH100 - Path keeps `..`
    except OSError as error:
        raise StorageError(
            f"Cannot resolve the relative path {path!r}, because the current directory is gone:"
            " change to one that exists."
        ) from error
    _check_text(found)
    return found


def _check_text(path: str) -> None:
    if not is_utf8(path) or "\0" in path:
        raise StorageError(f"The path {path!r} is not UTF-8 text: rename the file or directory.")


def _collapsed(path: str) -> str:
    """An absolute path with one slash between two names and no trailing slash."""
    return "/" + posixpath.normpath("/" + path).lstrip("/")
