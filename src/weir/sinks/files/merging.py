"""How small files of ``Files`` are merged (``sinks/merging.py``), and how their names are kept.

Renames are not one transaction. If a commit dies between two of them, and the next driver merged
the same files anew, rows would be there twice. So before the first rename of an epoch, its *plan*
says which files get which names::

    _weir/plans/<job id>-orders/12
        {"moves": [{"source": "_weir/staged/0a1b2c3d-orders-1/m12-89abcdef/0/...", ...}]}

It is made by conditional create: of two drivers the second follows the plan of the first. It is
deleted once the ledger has the epoch, and whoever makes one looks at the ledger afterwards.
Payloads say whether their epoch has a plan, so all drivers that commit them agree on it, whatever
their own ``target_file_size`` is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from weir.core.types import Count
from weir.errors import SinkError
from weir.sinks.ddl import columns_ddl
from weir.sinks.merging import Added, Merger
from weir.sinks.parquet import read_footer
from weir.sinks.staging import StagedPath
from weir.storage.filesystem import CreateResult, FileSystem
from weir.storage.paths import join
from weir.storage.records import decoded


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A file that gets its final name; both paths are below the sink's root."""

    source: StagedPath
    target: StagedPath
    #: None if it was not recorded, in bytes.
    size: Count | None
    rows: Count


class _Plan(msgspec.Struct, frozen=True):
    moves: list[Move]


class FilesMerger(Merger[Added]):
    """Parquet files in a directory. A layout is their Spark schema, as JSON text."""

    def __init__(
        self, file_system: Callable[[str], FileSystem], options: Mapping[str, str]
    ) -> None:
        self._file_system = file_system
        self.options = options

    def columns(self, layout: str) -> str:
        """The columns of the schema."""
        return columns_ddl(json.loads(layout)["fields"])

    def added(self, like: Added, root: str, path: str, size: int) -> Added:
        """With its number of rows."""
        rows = read_footer(self._file_system(root), join(root, path)).rows
        return Added(
            root=root,
            path=path,
            file={"path": path, "size": size, "rows": rows},
            layout=like.layout,
            partition=like.partition,
        )


def epochs_in(file_system: FileSystem, directory: str) -> list[int]:
    """All epochs after which files of a directory are named, oldest first."""
    return epochs_among(entry.name for entry in file_system.list(directory))


def epochs_among(names: Iterable[str], suffix: str = "") -> list[int]:
    """All epochs after which files of these names are named, with a suffix, oldest first."""
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(int(stem) for stem in stems if re.fullmatch(r"[1-9][0-9]{0,17}", stem))


class Plans:
    """The plans of a sink's epochs that are not known to be committed."""

    def __init__(self, file_system: FileSystem, root: str, ledger: str, *, place: str) -> None:
        """``ledger``: the name of the sink's ledger; ``place`` is the sink, for messages."""
        self._file_system = file_system
        self._root = root
        self._directory = join(root, "_weir", "plans", ledger)
        self._place = place

    def check(self) -> None:
        """Raise ``UnsupportedEnvironmentError`` if no plan can be made at the target."""
        self._file_system.make_directory(self._directory, below=self._root)
        probe = join(self._directory, "probe")
        self._file_system.create(probe, b"")
        self._file_system.delete(probe)

    def read(self, epoch: int) -> list[Move] | None:
        """The moves of the epoch, durably; None if there is no plan."""
        path = join(self._directory, f"{epoch}")
        try:
            data = self._file_system.read(path)
            moves = decoded(data, _Plan).moves
            # Whoever made it may have died before it was on disk, or have failed to put it there.
            self._file_system.write(path, data)
            return moves
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise SinkError(
                f"The plan {path} of {self._place} is damaged ({error}): restore it from a copy."
                " It says which files of the checkpoint get which names, and some may have theirs."
            ) from error

    def settled(self, epoch: int, moves: Sequence[Move]) -> list[Move]:
        """The moves of the epoch from now on: these, unless another driver's came first."""
        self._file_system.make_directory(self._directory, below=self._root)
        path = join(self._directory, f"{epoch}")
        data = msgspec.json.encode(_Plan(list(moves)))
        if self._file_system.create(path, data) is CreateResult.CREATED:
            return list(moves)
        # If it is gone by now, the epoch is committed, which the caller finds in the ledger.
        return self.read(epoch) or list(moves)

    def epochs(self) -> list[int]:
        """Those that have a plan, oldest first."""
        return epochs_in(self._file_system, self._directory)

    def forget(self, epoch: int) -> None:
        """Delete the plans up to this epoch, which the ledger has."""
        for number in self.epochs():
            if number <= epoch:
                self._file_system.delete(join(self._directory, f"{number}"))
