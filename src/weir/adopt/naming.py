"""What a script's queries say about names and places: of the job, and of its checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from weir.storage.paths import is_local, join, lies_in, normalize, parent, root_of

if TYPE_CHECKING:
    from weir.spark.adopt.query import StartedQuery

_CHECKPOINTS = "_weir"
_LOCATION = "checkpointlocation"


def key_of(query: StartedQuery) -> str:
    """What tells a query from the others of its script, at each start.

    By its name, else by where it writes, else by its checkpoint location.
    """
    if query.name is not None:
        return f"name {query.name}"
    if query.table is not None:
        return f"table {query.table}"
    for option in ("path", "topic", "dbtable", _LOCATION):
        if option in query.options:
            return f"{option} {query.options[option]}"
    return f"a query of {query.format or 'a function'}"


def checkpoint_directory(queries: Iterable[StartedQuery], default_root: str | None) -> str | None:
    """Where the checkpoints of a job lie whose queries have checkpoint locations.

    In ``_weir`` in the directory that all of them share; None if they share none, or have none.
    ``default_root`` is the session's setting, below which a query without a location has its own.
    """
    parents = [parent(normalize(location)) for location in _locations(queries)]
    if default_root:
        parents.append(normalize(default_root))
    common = _common(parents)
    return None if common is None else join(common, _CHECKPOINTS)


def _locations(queries: Iterable[StartedQuery]) -> list[str]:
    return [query.options[_LOCATION] for query in queries if _LOCATION in query.options]


def _common(directories: Sequence[str]) -> str | None:
    roots = {"/" if is_local(one) else root_of(one) for one in directories}
    if len(roots) != 1:
        return None
    common = directories[0]
    for other in directories[1:]:
        while not lies_in(other, common):
            common = parent(common)
    return common
