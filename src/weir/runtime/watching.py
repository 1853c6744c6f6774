"""``Watchers``: the functions that are called with what the machines of a job do.

The recorder, the job's view, the display of a start and lineage follow a job by the messages of its
machines. Each subscribes to the types of messages that it needs, and the dispatcher calls it
directly:

- ``watch_task``: events that one task has handled, and its effects.
- ``watch_effects``: effects of the job master and of all tasks.

Rules. Subscribe before the job runs. An event is passed on once its machine has handled it, and an
effect once it has been started. Functions are called on the main thread, in the order in which they
subscribed; so they may read the machines, and must not block. What they raise is logged and does
not reach the job.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from weir.core.types import VertexId

_log = logging.getLogger(__name__)

#: Is called with a message.
Watch: TypeAlias = Callable[[Any], None]


class Watchers:
    """The subscriptions of one job, by type of message."""

    def __init__(self) -> None:
        self._of_tasks: dict[tuple[VertexId, type], list[Watch]] = defaultdict(list)
        self._of_effects: dict[type, list[Watch]] = defaultdict(list)

    def watch_task(self, vertex: VertexId, watches: Mapping[type, Watch]) -> None:
        """Subscribe to events and effects of one task."""
        for kind, watch in watches.items():
            self._of_tasks[vertex, kind].append(watch)

    def watch_effects(self, watches: Mapping[type, Watch]) -> None:
        """Subscribe to effects of all machines; ``object`` stands for every effect."""
        for kind, watch in watches.items():
            self._of_effects[kind].append(watch)

    def of_task(self, vertex: VertexId, kind: type) -> list[Watch]:
        """The functions for this type of event or effect of a task."""
        return self._of_tasks.get((vertex, kind), [])

    def of_effect(self, vertex: VertexId | None, kind: type) -> list[Watch]:
        """The functions for this type of effect of a task, or of the job master (None)."""
        of_task = [] if vertex is None else self.of_task(vertex, kind)
        of_all = self._of_effects.get(kind, []) + self._of_effects.get(object, [])
        return of_task + of_all


@contextmanager
def harmless() -> Iterator[None]:
    """Log what a watcher raises."""
    try:
        yield
    except Exception:
        _log.exception("A watcher of the job failed. The job goes on.")
