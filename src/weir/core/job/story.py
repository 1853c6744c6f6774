"""``Story``: the newest events of a job, with its status before and after each, for whoever asks how it came to this."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from weir.core.status import JobStatus

#: Entries that are kept: enough to see how a job came to where it is.
STORY_LENGTH = 200


@dataclass(frozen=True, kw_only=True)
class StoryEntry:
    """One event that the job master handled."""

    now_ms: int
    event: str
    before: JobStatus
    after: JobStatus


class Story:
    """The newest ``STORY_LENGTH`` events."""

    def __init__(self) -> None:
        #: Made into entries when somebody reads them: an event costs one tuple.
        self._events: deque[tuple[int, str, JobStatus, JobStatus]] = deque(maxlen=STORY_LENGTH)

    def note(self, now_ms: int, event: str, before: JobStatus, after: JobStatus) -> None:
        """An event was handled."""
        self._events.append((now_ms, event, before, after))

    @property
    def entries(self) -> tuple[StoryEntry, ...]:
        """The events, oldest first."""
        return tuple(
            StoryEntry(now_ms=now_ms, event=event, before=before, after=after)
            for now_ms, event, before, after in self._events
        )
