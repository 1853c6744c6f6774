"""Object stores (``s3:``, ``gs:``, ``az:``) by obstore, without a JVM and without Hadoop.

Also ``s3a:``, Hadoop's name of S3, where there is no Spark.

Rules of this file:

1. ``create`` is a put with ``If-None-Match: *`` (on Google's store: generation 0), so of any number
   of writers exactly one wins (PROTOCOL P17). Each create carries a token of its own in the
   object's metadata. obstore repeats a put whose answer was lost, and the repetition finds the name
   taken, perhaps by the first try. So whenever a create did not plainly succeed, the token decides:
   ours means created. The content could not decide, since entries of the id counter are all empty.
2. An object appears whole or not at all: by one put, or by a multipart upload that is completed
   last and aborted if a block cannot be read. Nothing is renamed to become visible.
3. A directory is a prefix. If it was made by itself, it has a marker object, which ``list`` does
   not show; if it was made ``below`` another directory, it exists once it has a file.
4. What the store answers never gets into a message or a traceback as it is, since it may quote
   credentials: only its error code and its one-line message do.
5. obstore repeats a failed request for up to a minute. Only the first look at a bucket gives up
   sooner, so that a wrong endpoint is reported soon.

It assumes that a listing shows every object that existed when it began, as the three stores
promise. A request that failed here may still be carried out later (``acts_late``).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from weir.errors import StorageError
from weir.kernel import MACHINE, Kernel
from weir.storage.filesystem import (
    BLOCK_BYTES,
    DIRECTORY_MARKER,
    CreateResult,
    FileStatus,
    checksum_of,
)
from weir.storage.paths import join, name_of, root_of, scheme_of

if TYPE_CHECKING:
    from obstore.store import RetryConfig

T = TypeVar("T")

#: Files that are moved at once, for one caller.
_TRANSFERS = 8
#: A larger file goes up in parts of this size, two at a time. A store allows 10,000 parts.
_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 2
#: A larger file is read in ranges of this size.
_RANGE_BYTES = 16 << 20
#: Above this size a store does not copy in one request.
_COPY_BYTES_MAX = 5_000_000_000
#: The name of the metadata that holds a create's token: stores differ in what names may contain.
_TOKEN = "weirtoken"

#: As configuration, since obstore's ``client_options`` would hide those of the environment.
_TIMEOUTS = {
    "connect_timeout": "5 seconds",
    # Without a byte for so long, a connection counts as dead.
    "read_timeout": "60 seconds",
    "timeout": "10 minutes",
}
_PATIENT: RetryConfig = {
    "max_retries": 100,
    "retry_timeout": timedelta(minutes=1),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=5),
        "base": 2,
    },
}
_AT_START: RetryConfig = {**_PATIENT, "retry_timeout": timedelta(seconds=20)}

_FAILURES = (exceptions.BaseError, ValueError, OSError)
#: Credentials are missing or not accepted; the second is where a cloud's machines ask for theirs.
_REFUSAL = re.compile(r"status code: 40[13]|//169\.254\.")
_VARIABLES = {"s3": "AWS_*", "s3a": "AWS_*", "gs": "GOOGLE_*", "az": "AZURE_*"}
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound")
#: Requests for one object, which may be missing; if another request finds nothing, the bucket is
#: missing.
_FOR_ONE = frozenset({"read", "look at", "copy", "delete"})
_ERROR_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,60})</Code>")
#: What the operating system says, in the debug output.
_CAUSE = re.compile(r'(?:message|error): "([A-Za-z][A-Za-z ,:-]{1,100})"')
#: A user and password in an endpoint's URL.
_USERINFO = re.compile(r"//[^/@\s]*@")
_REASON_CHARACTERS = 300
_ERROR_MESSAGE = re.compile(r"<Message>([^<]{1,300})</Message>")


class _TakenError(StorageError):
    """The store says that the name of a create is taken."""


class ObjectStoreFileSystem:
    """One bucket or container. The module's docstring says how it arbitrates."""

    #: Sends the requests; the simulator has its own.
    _client: Any = obstore

    def __init__(self, uri: str, kernel: Kernel = MACHINE) -> None:
        """``uri`` is any path in the bucket; the environment has credentials, region and endpoint.

        Raises ``StorageError`` if the bucket cannot be listed.
        """
        self._new_token = kernel.new_name
        self._root = root_of(uri)
        self._scheme = scheme_of(uri) or ""
        if "@" in self._root:
            # Without the URI, which seems to hold a password.
            raise StorageError(
                f"A path in {self._scheme}: has an @ before its first name: name only the bucket,"
                f" and put credentials into the environment ({_VARIABLES[self._scheme]})."
            )
        starting = self._connected(_AT_START)
        # List only this path: credentials may be for it alone, and objects elsewhere may have names
        # that obstore does not accept.
        self._ask("reach", uri, lambda: self._client.list_with_delimiter(starting, self._key(uri)))
        self._store = self._connected(_PATIENT)

    def _connected(self, retries: RetryConfig) -> S3Store | GCSStore | AzureStore:
        """A client of the store.

        Raises ``StorageError``, outside of the ``except``: what obstore says of a setting may quote
        its value.
        """
        try:
            return self._connect(retries)
        except BaseException as error:
            if not (isinstance(error, Exception) or _is_panic(error)):
                raise
        raise StorageError(
            f"The settings of {self._root} in the environment ({_VARIABLES[self._scheme]}) cannot"
            " be used: one of them is malformed."
        )

    def _connect(self, retries: RetryConfig) -> S3Store | GCSStore | AzureStore:
        bucket = self._root.rpartition("/")[2]
        # Its type does not have the options of the client.
        config: Any = dict(_TIMEOUTS)
        if self._scheme == "gs":
            return GCSStore(bucket, config=config, retry_config=retries)
        if self._scheme == "az":
            return AzureStore(bucket, config=config, retry_config=retries)
        # One request for each deletion: they are free, and not all stores delete in bulk.
        config["disable_bulk_delete"] = True
        return S3Store(bucket, config=config, retry_config=retries)

    @property
    def acts_late(self) -> bool:
        """True: a put that was given up may still arrive."""
        return True

    @property
    def transfers(self) -> int:
        """Several: each waits for the network most of the time."""
        return _TRANSFERS

    def create(self, path: str, data: bytes) -> CreateResult:
        """Create the object unless the name is taken (rule 1)."""
        token = self._new_token()
        try:
            self._ask(
                "create",
                path,
                lambda: self._client.put(
                    self._store,
                    self._key(path),
                    data,
                    mode="create",
                    attributes={_TOKEN: token},
                    use_multipart=False,
                ),
            )
            return CreateResult.CREATED
        except StorageError as error:
            failure = error
        try:
            found = self._token(path)
        except StorageError as error:
            raise error if isinstance(failure, _TakenError) else failure from None
        if found == token:
            return CreateResult.CREATED
        if found is None and not isinstance(failure, _TakenError):
            raise failure
        return CreateResult.ALREADY_EXISTS

    def write(self, path: str, data: bytes) -> None:
        """Create or replace the object."""
        self.write_blocks(path, (data,))

    def write_blocks(self, path: str, blocks: Iterable[bytes]) -> None:
        """Create or replace the object: by one put, or in parts if it is large."""
        source = iter(blocks)
        start = bytearray()
        for block in source:
            start += block
            if len(start) > _PART_BYTES:
                break
        large = len(start) > _PART_BYTES
        content = itertools.chain((bytes(start),), source) if large else bytes(start)
        self._ask(
            "write",
            path,
            lambda: self._client.put(
                self._store,
                self._key(path),
                content,
                use_multipart=large,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            ),
        )

    def read(self, path: str) -> bytes:
        """The content. Raises ``FileNotFoundError`` if there is no such object."""
        return self._ask(
            "read", path, lambda: bytes(self._client.get(self._store, self._key(path)).bytes())
        )

    def read_end(self, path: str, size: int) -> bytes:
        """The last ``size`` bytes. Raises ``FileNotFoundError`` if there is no such object."""
        whole = self._size(path)
        if whole is None:
            raise FileNotFoundError(path)
        if min(size, whole) == 0:
            return b""
        key, start = self._key(path), max(0, whole - size)
        return self._ask(
            "read",
            path,
            lambda: bytes(self._client.get_range(self._store, key, start=start, end=whole)),
        )

    def blocks(self, path: str) -> Iterator[bytes]:
        """The content in blocks. Raises ``FileNotFoundError`` if there is no such object."""
        key = self._key(path)
        whole = self._ask("read", path, lambda: self._client.get(self._store, key))
        size, tag = whole.meta["size"], whole.meta["e_tag"]
        if size > _RANGE_BYTES and tag is not None:
            # Each range may be repeated on its own, for as long as a small file may.
            for start in range(0, size, _RANGE_BYTES):
                options: Any = {
                    "range": (start, min(size, start + _RANGE_BYTES)),
                    "if_match": tag,
                }
                part = self._ask(
                    "read",
                    path,
                    lambda: bytes(self._client.get(self._store, key, options=options).bytes()),  # noqa: B023
                )
                for at in range(0, len(part), BLOCK_BYTES):
                    yield part[at : at + BLOCK_BYTES]
            return
        chunks = self._ask("read", path, lambda: iter(whole.stream(BLOCK_BYTES)))
        while (chunk := self._ask("read", path, lambda: next(chunks, None))) is not None:
            view = memoryview(chunk)
            for start in range(0, len(view), BLOCK_BYTES):
                yield bytes(view[start : start + BLOCK_BYTES])

    def status(self, path: str) -> FileStatus | None:
        """The status of the object or directory at the path; None if there is neither."""
        size = self._size(path)
        if size is not None:
            return FileStatus(name=name_of(path), size=size, is_directory=False)
        if not self._is_directory(path):
            return None
        return FileStatus(name=name_of(path), size=0, is_directory=True)

    def is_link(self, path: str) -> bool:
        """Always False: there are no links."""
        return False

    def list(self, path: str) -> list[FileStatus]:
        """Entries of a directory, sorted by name; empty if nothing has the prefix."""
        key = self._key(path)
        answer = self._ask("list", path, lambda: self._client.list_with_delimiter(self._store, key))
        entries = [
            FileStatus(
                name=name_of(found["path"]),
                size=found["size"],
                is_directory=False,
                mtime_ns=round(found["last_modified"].timestamp() * 1000) * 10**6,
            )
            for found in answer["objects"]
            # Other tools mark a directory by an object of its name with a slash.
            if found["path"] != key
        ]
        entries += [
            FileStatus(name=name_of(prefix), size=0, is_directory=True)
            for prefix in answer["common_prefixes"]
        ]
        return sorted(
            (entry for entry in entries if entry.name != DIRECTORY_MARKER),
            key=lambda entry: entry.name,
        )

    def make_directory(self, path: str, *, below: str | None = None) -> None:
        """Write the directory's marker; with ``below``, only check that ``below`` exists."""
        if below is None:
            if self._size(join(path, DIRECTORY_MARKER)) is None:
                self.write(join(path, DIRECTORY_MARKER), b"")
        elif not self._is_directory(below):
            raise StorageError(
                f"Cannot create the directory {path}: {below} is gone. Restore it, or choose"
                " another directory."
            )

    def make_private_directory(self, path: str) -> None:
        """Like ``make_directory``: the store decides who may read it."""
        self.make_directory(path)

    def delete(self, path: str) -> None:
        """Delete an object, or all below a prefix."""
        if self._size(path) is not None:
            self._delete(path, [self._key(path)])
            return
        # Once more if another process was deleting the same objects.
        before: list[str] = []
        while keys := [*self._below(path)]:
            if keys == before:
                raise StorageError(
                    f"Could not delete {path}: the store keeps {len(keys)} objects below it, such"
                    f" as {keys[0]!r}. Check the bucket's policy, or delete them by hand."
                )
            self._delete(path, keys)
            before = keys

    def delete_files(self, paths: Sequence[str]) -> None:
        """Delete objects, several at once."""
        if paths:
            self._delete(paths[0], [self._key(path) for path in paths])

    def rename(self, source: str, target: str) -> None:
        """Copy a file and delete the source. A crash in between leaves both.

        Raises ``StorageError`` for a directory, which an object store cannot move.
        """
        self._copy(source, target)
        self.delete(source)

    def link_or_copy(self, source: str, target: str) -> bool:
        """Copy the file inside the store, unless a target of the same size exists; always False."""
        size = self._size(source)
        if size is None:
            raise StorageError(f"{source} vanished before it could be copied.")
        if self._size(target) == size:
            return False
        if size > _COPY_BYTES_MAX:
            self.write_blocks(target, self.blocks(source))
        else:
            self._copy(source, target)
        return False

    def checksum(self, path: str) -> tuple[int, str]:
        """Size in bytes and ``crc32:`` checksum of the content."""
        return checksum_of(path, self.blocks(path))

    def real_path(self, path: str) -> str:
        """The path itself: there are no links here."""
        return path

    def sync(self, files: Iterable[str]) -> None:
        """Do nothing: an object that was put is durable."""

    # ---- internals

    def _key(self, path: str) -> str:
        return path[len(self._root) + 1 :]

    def _size(self, path: str) -> int | None:
        """The size of an object; None if it does not exist."""
        key = self._key(path)
        if not key:
            return None
        try:
            return self._ask(
                "look at", path, lambda: int(self._client.head(self._store, key)["size"])
            )
        except FileNotFoundError:
            return None

    def _token(self, path: str) -> str | None:
        """The token of the object's create, "" without a token; None without an object."""
        key = self._key(path)
        try:
            found = self._ask(
                "look at",
                path,
                lambda: self._client.get(self._store, key, options={"head": True}).attributes,
            )
        except FileNotFoundError:
            return None
        return str(found.get(_TOKEN, ""))

    def _is_directory(self, path: str) -> bool:
        marker = join(path, DIRECTORY_MARKER)
        return self._size(marker) is not None or next(self._below(path), None) is not None

    def _below(self, path: str) -> Iterator[str]:
        """The keys of all objects below a prefix."""
        prefix = self._key(path)
        pages = self._ask("list", path, lambda: iter(self._client.list(self._store, prefix)))
        while (page := self._ask("list", path, lambda: next(pages, None))) is not None:
            # Not the mark of another tool for the directory itself, which obstore cannot delete.
            yield from (found["path"] for found in page if found["path"] != prefix)

    def _delete(self, path: str, keys: Sequence[str]) -> None:
        try:
            self._ask("delete", path, lambda: self._client.delete(self._store, keys))
        except FileNotFoundError:
            # Some stores report what another process has deleted.
            return

    def _copy(self, source: str, target: str) -> None:
        old, new = self._key(source), self._key(target)
        try:
            self._ask("copy", source, lambda: self._client.copy(self._store, old, new))
        except FileNotFoundError as error:
            raise StorageError(f"Cannot copy {source}: there is no such file.") from error

    def _ask(self, what: str, path: str, request: Callable[[], T]) -> T:
        """The store's answer.

        Raises ``FileNotFoundError`` if there is no such object, else ``StorageError``: both outside
        of the ``except``, so that no traceback shows the store's answer (rule 4).
        """
        failure: StorageError | None = None
        try:
            return request()
        except StorageError:
            # From the blocks of a file that is written.
            raise
        except _FAILURES as error:
            text = str(error)
            if isinstance(error, exceptions.AlreadyExistsError):
                failure = _TakenError(f"{path} exists.")
            elif (
                not isinstance(error, FileNotFoundError)
                or what not in _FOR_ONE
                or _NO_BUCKET.search(text)
            ):
                failure = StorageError(
                    f"Could not {what} {path}: {_reason(text)}. {self._way_out(text)}"
                )
        except BaseException as error:
            if not _is_panic(error):
                raise
            failure = StorageError(
                f"Could not {what} {path}: a setting in {_VARIABLES[self._scheme]} is malformed."
            )
        if failure is None:
            raise FileNotFoundError(path)
        raise failure

    def _way_out(self, text: str) -> str:
        variables = _VARIABLES[self._scheme]
        if "invalid path" in text:
            return "Delete or move the object that has this name; Weir did not write it."
        if "BadScheme" in text:
            return "Use an https: endpoint or, on a network you trust, set AWS_ALLOW_HTTP=true."
        if _NO_BUCKET.search(text):
            return "Create the bucket, or correct its name."
        if "<Code>NotImplemented</Code>" in text:
            return "It has no conditional writes, so it cannot hold checkpoints: use another store."
        if _REFUSAL.search(text):
            return (
                f"Check the credentials in the environment ({variables}) and the bucket's policy."
            )
        return f"Check that the store answers, and the endpoint and region in {variables}."


def _reason(text: str) -> str:
    """One line that says what went wrong: no body, no query string, no debug output."""
    code, message, cause = (
        found[1].strip() if (found := pattern.search(text)) is not None else ""
        for pattern in (_ERROR_CODE, _ERROR_MESSAGE, _CAUSE)
    )
    line = re.split(r"\n|: [<{]", text, maxsplit=1)[0]
    said = re.sub(r"^Generic \w+ error: |\?[^\s)]*|, max_retries: .*?(?= - |$)", "", line)
    said = said.strip().rstrip(".:")
    more = ": ".join(filter(None, (code, message) if code else (cause,))).rstrip(".")
    return _USERINFO.sub("//", f"{said} ({more})" if more else said)[:_REASON_CHARACTERS]


def _is_panic(error: BaseException) -> bool:
    """Whether obstore's Rust code has panicked, for which it exports no class."""
    return type(error).__name__ == "PanicException"
