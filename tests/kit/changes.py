"""``Changes`` for tests: the job as it is declared, or none."""

from collections.abc import Callable, Iterable

from weir import Job
from weir.definition import declared_operators
from weir.durable.changes import Changes
from weir.job import definition_of


def no_changes() -> Changes:
    """Compares nothing."""
    return Changes(operators={}, accepted=frozenset(), note=lambda _: None)


def changes_of(
    job: Job, *, accepted: Iterable[str] = (), note: Callable[[str], None] = lambda _: None
) -> Changes:
    """Compares a job."""
    return Changes(
        operators=declared_operators(definition_of(job)), accepted=frozenset(accepted), note=note
    )
