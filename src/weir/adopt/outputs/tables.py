"""Sinks of ``toTable``: they register their table in the session's catalog."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weir.core.types import Payload
from weir.sinks.base import SinkContext
from weir.sinks.delta.sink import DeltaTable
from weir.sinks.files.sink import Files


class CatalogFiles(Files):
    """``Files`` of a table in the session's catalog."""

    def __init__(
        self,
        path: str,
        *,
        register: Callable[[bool], None],
        refresh: Callable[[], None],
        **given: Any,
    ) -> None:
        """``register`` creates the table (it gets whether there are files already), ``refresh``
        shows it what was added."""
        super().__init__(path, **given)
        self._register = register
        self._refresh = refresh

    def open(self, context: SinkContext) -> None:
        """Also create the table, before anything is in its directory."""
        self._register(bool(context.file_system(self._root).list(self._root)))
        super().open(context)
        self._refresh()

    def commit(self, epoch: int, payloads: Sequence[Payload]) -> int:
        """Also show the rows to the session."""
        rows = super().commit(epoch, payloads)
        if payloads:
            self._refresh()
        return rows


class CatalogDelta(DeltaTable):
    """A ``DeltaTable`` in the session's catalog."""

    def __init__(self, path: str, *, register: Callable[[bool], None], **given: Any) -> None:
        super().__init__(path, **given)
        self._register = register

    def open(self, context: SinkContext) -> None:
        """Also create the table, before anything is in its directory."""
        self._register(bool(context.file_system(self._root).list(self._root)))
        super().open(context)
