"""What lies in a job's mailbox: events of the job master as they are, and these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from weir.core.messages.job import JobMasterEvent
from weir.core.messages.task import StreamTaskEvent
from weir.core.types import VertexId
from weir.kernel.ports import AttemptStart


@dataclass(frozen=True)
class ToTask:
    """An event of one task of one attempt."""

    vertex: VertexId
    attempt: int
    event: StreamTaskEvent


@dataclass(frozen=True)
class AttemptStarted:
    """An attempt is on record, restored and committed again: its tasks may start."""

    start: AttemptStart


@dataclass(frozen=True)
class Call:
    """Something that an outside thread wants done on the main thread (views, requests)."""

    function: Callable[[], None]


#: What is posted: an event, something to be called, or an error that ends the run.
Envelope: TypeAlias = ToTask | AttemptStarted | Call | JobMasterEvent | BaseException
