"""A local file system whose next creates end in doubt, as on an unreliable network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weir.errors import StorageError
from weir.kernel import MACHINE
from weir.storage.filesystem import CreateResult
from weir.storage.local import LocalFileSystem


class FaultyFileSystem(LocalFileSystem):
    """Fails the next ``lost`` creates undone and the next ``unanswered`` ones after they are done.

    ``unreadable`` reads and ``unreadable_checksums`` checksums fail, and so does every deletion
    below ``undeletable``; ``before_create`` runs once before the next create.
    """

    def __init__(self, *, lost: int = 0, unanswered: int = 0, unreadable: int = 0) -> None:
        super().__init__()
        self.lost = lost
        self.unanswered = unanswered
        self.unreadable = unreadable
        self.unreadable_checksums = 0
        self.undeletable: str | None = None
        self.before_create: Callable[[], object] | None = None

    def create(self, path: str, data: bytes) -> CreateResult:
        if self.before_create is not None:
            action, self.before_create = self.before_create, None
            action()
        if self.lost > 0:
            self.lost -= 1
            raise StorageError(f"Cannot create {path}: the network is down.")
        result = super().create(path, data)
        if self.unanswered > 0:
            self.unanswered -= 1
            raise StorageError(f"Cannot create {path}: no answer.")
        return result

    def read(self, path: str) -> bytes:
        if self.unreadable > 0:
            self.unreadable -= 1
            raise StorageError(f"Cannot read {path}: the network is down.")
        return super().read(path)

    def checksum(self, path: str) -> tuple[int, str]:
        if self.unreadable_checksums > 0:
            self.unreadable_checksums -= 1
            raise StorageError(f"Cannot read {path}: the network is down.")
        return super().checksum(path)

    def delete(self, path: str) -> None:
        if self.undeletable is not None and path.startswith(self.undeletable):
            raise StorageError(f"Cannot delete {path}: the network is down.")
        super().delete(path)


#: Waiting takes no time.
QUICK = replace(MACHINE, sleep=lambda _: None)
