"""Relates the names in a file to those of the schema, as Spark's reader does.

Case does not matter, in any format and at any depth. Two columns of a file with one name are
refused, since nobody knows which is meant, and so is a file with none of the schema's columns: it
has another separator, no header, or another content. A column that a file lacks is null.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Names of a file that a message lists.
_LISTED = 10


def folded(name: str) -> str:
    """The same for names that differ in case only, as Spark folds it."""
    return name.lower()


def places(found: Sequence[str], wanted: Sequence[str], what: str = "columns") -> list[int | None]:
    """Where each wanted name is among those of a file; None for one that the file lacks.

    Raises ``ValueError`` if a name is there twice, or if none is.
    """
    by_name: dict[str, list[int]] = {}
    for place, name in enumerate(found):
        by_name.setdefault(folded(name), []).append(place)
    given = [by_name.get(folded(name), []) for name in wanted]
    for name, there in zip(wanted, given, strict=True):
        if len(there) > 1:
            spelled = " and ".join(repr(found[place]) for place in there)
            raise ValueError(f"{len(there)} of its {what} are called {name!r}: {spelled}")
    if wanted and not any(given):
        raise ValueError(none_of(wanted, found, what))
    return [there[0] if there else None for there in given]


def none_of(wanted: Sequence[str], found: Sequence[str], what: str = "columns") -> str:
    """Why a file with these names is not what the schema says."""
    return f"it has none of the {what} {_listed(wanted)}, but {_listed(found)}"


def _listed(names: Sequence[str]) -> str:
    listed = ", ".join(repr(name[:100]) for name in names[:_LISTED])
    return f"{listed}, and {len(names) - _LISTED} more" if len(names) > _LISTED else listed
