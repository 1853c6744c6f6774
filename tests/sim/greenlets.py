"""Runs functions that block on a loop of virtual time, for the tests of the simulator's parts."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from weir.sim.disk import Disk, ProcessFileSystem
from weir.sim.loop import Loop, Process

#: Long enough for everything that these tests do, in virtual microseconds.
LIMIT_US = 1_000_000_000


class NoWatcher:
    """A watcher of a disk that nobody audits."""

    def deleted(self, path: str) -> None:
        """Nothing."""

    def created(self, path: str, data: bytes) -> None:
        """Nothing."""


class ScriptedFaults:
    """``disk.StorageFaults`` that strike the operations that are named."""

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
        """Each operation takes 100 microseconds."""
        return 100

    def fails_before(self, operation: str) -> bool:
        """Whether it is named."""
        return operation in self.before

    def fails_after(self, operation: str) -> bool:
        """Whether it is named."""
        return operation in self.after

    def loses_writes(self) -> bool:
        """As was asked for."""
        return self.syncs_fail


class Always(Random):
    """Chance that always falls the same way."""

    def __init__(self, drawn: float) -> None:
        super().__init__(0)
        self._drawn = drawn

    def random(self) -> float:
        """What was given."""
        return self._drawn


#: With it, a crash loses everything that it may lose; and nothing.
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
    """Run functions beside each other until all are over; raises what one of them raised."""
    tasks = [loop.spawn(Process("p"), function) for function in functions]
    loop.run(lambda: all(task.done() for task in tasks), LIMIT_US)
    assert all(task.done() for task in tasks)
