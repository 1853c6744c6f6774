"""One query of a script, as those see it who choose its sink."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from weir.errors import PipelineError
from weir.sinks.base import Sink

if TYPE_CHECKING:
    from weir.spark.adopt.query import StartedQuery

#: A sink, and what is said of it.
Chosen: TypeAlias = tuple[Sink, tuple[str, ...]]

#: Options that are not the format's.
_PLACES = frozenset(("path", "checkpointlocation"))


@dataclass(frozen=True, kw_only=True)
class Request:
    """A started query with what is known of its step."""

    query: StartedQuery
    uid: str
    #: Whether the step emits updates.
    updates: bool
    #: The output columns that are the aggregation's keys; None if some are missing.
    keys: tuple[str, ...] | None
    #: A directory of the sink alone, for staging.
    directory: str

    @property
    def is_complete(self) -> bool:
        """Whether the script asks for the whole result."""
        return self.query.output_mode == "complete"

    @property
    def options(self) -> dict[str, str]:
        """The options of the format."""
        given = self.query.options
        return {name: value for name, value in given.items() if name not in _PLACES}

    def said(self, text: str) -> str:
        """A sentence about the query."""
        return f"Query {self.query.name or self.uid!r} ({self.query.place}): {text}"

    def refused(self, text: str) -> PipelineError:
        """A refusal at the query's line."""
        return PipelineError(f"{self.query.place}: {text}")

    def without_effect(self, options: Iterable[str]) -> tuple[str, ...]:
        """What is said of options that change no rows."""
        return tuple(
            self.said(f"the option {name!r} has no effect under Weir.") for name in sorted(options)
        )

    def complete_keys(self) -> tuple[str, ...]:
        """The columns by which rows replace each other in complete mode. Raises without them."""
        if self.keys is None:
            raise self.refused(
                "complete mode keeps the newest row of each group, but the output lacks a column"
                " of groupBy: select all of them, or use the output mode 'update'."
            )
        return self.keys

    def check_not_partitioned(self, what: str) -> None:
        """As Spark does for what has no directories."""
        if self.query.partition_by:
            raise self.refused(f"{what} cannot be partitioned: remove partitionBy.")
