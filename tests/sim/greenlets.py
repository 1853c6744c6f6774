"""Runs blocking functions on a loop of virtual time, for the tests of the simulator's parts."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from weir.sim.engine.disk import Disk, ProcessFileSystem
from weir.sim.engine.loop import Loop, Process

#: Long enough for all of these tests, in virtual microseconds.
LIMIT_US = 1_000_000_000


class NoWatcher:
    """The watcher of a disk that is not audited."""

    def deleted(self, path: str) -> None:
        """Do nothing."""

    def created(self, path: str, data: bytes) -> None:
        """Do nothing."""


class ScriptedFaults:
    """``disk.StorageFaults`` that strike the named operations."""

    def __init__(
        self,
        *,
        before: tuple[str, ...] = (),
        after: tuple[str, ...] = (),
        loses_writes: bool = False,
    ) -> None:
        self.before = before
        self.after = after
        self.syncs_fail = loses_writes

    def delay_us(self) -> int:
        """100 microseconds for each operation."""
        return 100

    def fails_before(self, operation: str) -> bool:
        """Whether the operation is named."""
        return operation in self.before

    def fails_after(self, operation: str) -> bool:
        """Whether the operation is named."""
        return operation in self.after

    def loses_writes(self, path: str) -> bool:
        """Whether syncs fail, as set."""
        del path
        return self.syncs_fail


class Always(Random):
    """A random generator that always returns the same value."""

    def __init__(self, drawn: float) -> None:
        super().__init__(0)
        self._drawn = drawn

    def random(self) -> float:
        """The given value."""
        return self._drawn


#: With the first, a crash loses every unsynced change; with the second, none.
LOSES_ALL, LOSES_NOTHING = Always(0.0), Always(0.99)


def new_disk() -> Disk:
    """An empty disk."""
    return Disk(NoWatcher())


def file_system(
    disk: Disk, loop: Loop, process: Process | None = None, faults: ScriptedFaults | None = None
) -> ProcessFileSystem:
    """The disk as one process sees it, on a file system with links."""
    return ProcessFileSystem(
        disk, loop, process or Process("p"), faults or ScriptedFaults(), links=True
    )


def run_all(loop: Loop, *functions: Callable[[], object]) -> None:
    """Run functions concurrently until all have ended; re-raises an error that one raised."""
    tasks = [loop.spawn(Process("p"), function) for function in functions]
    loop.run(lambda: all(task.done() for task in tasks), LIMIT_US)
    assert all(task.done() for task in tasks)
