"""A bucket of an object store, and what obstore is to one process: the real storage runs over it.

What ``weir.storage.object_store`` assumes of a store, and what may happen there:

1. A conditional put takes a name that is free, and of any number of writers exactly one wins. The
   client repeats a put whose answer was lost; the repetition finds the name taken, perhaps by the
   first try. When the client gives up, the put may have been carried out, or may be later, even if
   the driver is dead by then.
2. A listing shows every object that existed when it began and still exists; of what comes and goes
   meanwhile, it may show anything. It comes in pages.
3. An object appears whole, and a multipart upload appears when it is completed.
4. Nothing is renamed, and what is gone may be deleted again.

Its objects are durable files of the simulated disk, so the auditor sees them as it sees others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

from greenlet import getcurrent
from obstore import exceptions

from weir.kernel import Kernel
from weir.sim.engine.disk import Disk
from weir.sim.stores.faults import Network, Outcome
from weir.storage.object_store import ObjectStoreFileSystem

T = TypeVar("T")

#: How often a client repeats a request.
_TRIES = 3
_PAGE = 5


@dataclass(frozen=True)
class Stored:
    """One object."""

    data: bytes
    attributes: dict[str, str] = field(default_factory=dict)


class Bucket:
    """The objects that every process sees, by key."""

    def __init__(self, network: Network, disk: Disk, root: str) -> None:
        """``root``: the URI of the bucket, under which its objects are on the disk."""
        self.network = network
        self._disk = disk
        self._root = f"{root}/"
        self._attributes: dict[str, dict[str, str]] = {}

    def put(self, key: str, stored: Stored, *, create: bool) -> None:
        """Carry out a put. A conditional put raises ``AlreadyExistsError`` if the name is taken."""
        path = self._root + key
        if create and path in self._disk.files:
            raise exceptions.AlreadyExistsError(f"{key} exists")
        self._attributes[path] = stored.attributes
        (self._disk.create if create else self._disk.write)(path, stored.data)

    def get(self, key: str) -> Stored | None:
        """An object; None if there is none."""
        path = self._root + key
        data = self._disk.files.get(path)
        return None if data is None else Stored(data, self._attributes.get(path, {}))

    def delete(self, key: str) -> None:
        """Delete an object, if it is there."""
        if self._root + key in self._disk.files:
            self._disk.delete(self._root + key)

    def keys(self, prefix: str) -> list[str]:
        """The keys below a prefix, sorted."""
        found = self._disk.below((self._root + prefix).rstrip("/"))
        return sorted(path.removeprefix(self._root) for path in found)


#: Nothing that is simulated asks when an object was put.
_UNKNOWN = datetime.fromtimestamp(0, UTC)


class Requests:
    """Stands in for the module ``obstore``; every function's first argument is the bucket."""

    @staticmethod
    def put(
        bucket: Bucket,
        key: str,
        data: bytes | Iterator[bytes],
        *,
        mode: str = "overwrite",
        attributes: dict[str, str] | None = None,
        **_: object,
    ) -> None:
        """Put an object, repeating the request as obstore does."""
        whole = data if isinstance(data, bytes) else b"".join(data)
        stored = Stored(whole, dict(attributes or {}))
        _ask(bucket, f"put {key}", lambda: bucket.put(key, stored, create=mode == "create"))

    @staticmethod
    def get(bucket: Bucket, key: str, *, options: dict[str, Any] | None = None) -> Any:
        """An object with its content, as of one moment."""
        del options
        stored = _ask(bucket, f"get {key}", lambda: _found(bucket, key))
        return SimpleNamespace(
            attributes=stored.attributes,
            meta={"size": len(stored.data), "e_tag": None},
            bytes=lambda: stored.data,
            stream=lambda _: iter((stored.data,)),
        )

    @staticmethod
    def get_range(bucket: Bucket, key: str, *, start: int, end: int) -> bytes:
        """A part of an object."""
        return _ask(bucket, f"get {key}", lambda: _found(bucket, key).data[start:end])

    @staticmethod
    def head(bucket: Bucket, key: str) -> dict[str, int]:
        """The size of an object."""
        return _ask(bucket, f"head {key}", lambda: {"size": len(_found(bucket, key).data)})

    @staticmethod
    def list(bucket: Bucket, prefix: str) -> Iterator[list[dict[str, str]]]:
        """All objects below a prefix, page by page."""
        for page in _pages(bucket, prefix):
            yield [{"path": key} for key in page]

    @staticmethod
    def list_with_delimiter(bucket: Bucket, prefix: str) -> dict[str, Any]:
        """The objects and prefixes directly below a prefix."""
        start = len(prefix) + 1 if prefix else 0
        objects: dict[str, Any] = {}
        prefixes: dict[str, None] = {}
        for page in _pages(bucket, prefix):
            for key in page:
                name, slash, _ = key[start:].partition("/")
                if slash:
                    prefixes[key[:start] + name] = None
                elif (stored := bucket.get(key)) is not None:
                    size = len(stored.data)
                    objects[key] = {"path": key, "size": size, "last_modified": _UNKNOWN}
        return {"objects": list(objects.values()), "common_prefixes": list(prefixes)}

    @staticmethod
    def delete(bucket: Bucket, keys: Sequence[str]) -> None:
        """Delete objects; those that are gone count as deleted."""
        for key in keys:
            _ask(bucket, f"delete {key}", partial(bucket.delete, key))

    @staticmethod
    def copy(bucket: Bucket, old: str, new: str) -> None:
        """Copy an object inside the store."""
        _ask(bucket, f"copy {old}", lambda: bucket.put(new, _found(bucket, old), create=False))


class SimObjectStore(ObjectStoreFileSystem):
    """The product's file system over a simulated bucket."""

    _client = Requests

    def __init__(self, uri: str, bucket: Bucket, kernel: Kernel) -> None:
        """``uri`` is any path in the bucket."""
        self._bucket = bucket
        super().__init__(uri, kernel)

    @property
    def transfers(self) -> int:
        """One: the simulator's order of events is fixed."""
        return 1

    def _connected(self, retries: Any) -> Any:
        return self._bucket


def _found(bucket: Bucket, key: str) -> Stored:
    stored = bucket.get(key)
    if stored is None:
        raise FileNotFoundError(key)
    return stored


def _ask(bucket: Bucket, what: str, request: Callable[[], T]) -> T:
    """Send a request until it is answered, a few times.

    Raises ``GenericError`` if it is not. The first look comes before the driver runs.
    """
    network = bucket.network
    if getcurrent() is network.loop.hub:
        return request()
    for _ in range(_TRIES):
        network.travel()
        # Keys may have random parts, which the story must not have.
        outcome = network.outcome(f"{what.split(maxsplit=1)[0]} of an object")
        if outcome is Outcome.ANSWERED:
            answer = request()
            network.travel()
            return answer
        network.unanswered(outcome, request, exceptions.BaseError, FileNotFoundError)
    network.travel()
    raise exceptions.GenericError(f"Simulated: no answer to {what}")


def _pages(bucket: Bucket, prefix: str) -> Iterator[list[str]]:
    """A listing, page by page."""
    start = ""
    while True:

        def page(start: str = start) -> list[str]:
            return [key for key in bucket.keys(prefix) if key > start][:_PAGE]

        found = _ask(bucket, f"list {prefix}", page)
        if not found:
            return
        yield found
        if len(found) < _PAGE:
            return
        start = found[-1]
