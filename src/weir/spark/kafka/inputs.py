"""``KafkaInputs``: what a job does about Kafka besides reading it.

A start compares topics with the checkpoint (``topics.py``), and so does each snapshot for which
rows were read: a topic that was deleted and made again meanwhile would be read on in the middle,
and no snapshot with its rows completes. After each completed checkpoint its offsets are committed
to the consumer group that the user names, for tools that watch the lag: on a thread of its own, one
commit at a time, so that brokers that do not answer hold up nothing.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
from py4j.protocol import Py4JJavaError

from weir.core.types import OperatorId, TaskState, VertexId
from weir.errors import CheckpointDamagedError, InputError
from weir.runtime.concurrency import in_background
from weir.sources.kafka_connector import GROUP
from weir.spark.failures import first_cause
from weir.spark.kafka.admin import Brokers, Offsets
from weir.spark.kafka.code import UNCOMMITTED
from weir.spark.kafka.topics import TOPICS_ENTRY, KafkaPlace, KnownTopics, check_place, with_lost
from weir.spark.state.directory import QueryDirectory
from weir.spark.state.log_entries import decode_offsets
from weir.storage.records import decoded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

#: How long the end of a job waits for the commit of its last offsets, in seconds.
_LAST_S = 5.0


@dataclass(frozen=True, kw_only=True)
class _Commit:
    group: str
    options: Mapping[str, str]
    offsets: Offsets


class KafkaInputs:
    """The places of a job's plans that read Kafka."""

    def __init__(
        self,
        session: SparkSession,
        *,
        accepted: frozenset[str],
        group: str | None,
        note: Callable[[str], None],
    ) -> None:
        """``accepted``: names and ids of steps that go on without rows that are gone.

        ``group`` is that of sources that name none of their own. ``note`` gets lines for users.
        """
        self._session = session
        self._accepted = accepted
        self._group = group
        self._note = note
        self._said: set[str] = set()
        self._lock = threading.Lock()
        self._places: dict[VertexId, tuple[KafkaPlace, ...]] = {}
        #: By vertex and number of the place: the ids of its topics, and the offsets up to which all
        #: rows are known to be of these.
        self._ids: dict[tuple[VertexId, int], dict[str, str]] = {}
        self._known: dict[tuple[VertexId, int], Offsets] = {}
        self._brokers: dict[tuple[VertexId, int], Brokers] = {}
        self._acknowledged: dict[tuple[VertexId, int], tuple[_Commit, ...]] = {}
        #: What is to be committed next, by vertex; and the thread that does so, if there is one.
        self._due: dict[VertexId, tuple[_Commit, ...]] = {}
        self._committing: Future[None] | None = None

    def start(
        self,
        vertex: VertexId,
        places: Sequence[KafkaPlace],
        directory: QueryDirectory,
        restored: TaskState | None,
    ) -> dict[str, str]:
        """Check the places of a query that is about to start in this directory.

        Returns the entries that its snapshots have besides their own. Raises ``LostInputError`` if
        rows are gone that it would read, and ``PipelineError`` for a topic that does not exist.
        """
        self._places[vertex] = tuple(places)
        if not places:
            return {}
        position = -1 if restored is None else restored.position
        known = KnownTopics() if restored is None else _known(restored)
        texts = list(directory.offsets(position))
        ids: dict[OperatorId, dict[str, str]] = {}
        lost = known.lost
        for place in places:
            self._say_isolation(place)
            offsets = _offsets(texts[place.number]) if texts else {}
            found, kept, given_up = self._checked(place, offsets, known.ids.get(place.step, {}))
            ids[place.step] = ids.get(place.step, {}) | found
            self._ids[vertex, place.number] = dict(found)
            self._known[vertex, place.number] = kept
            lost = with_lost(lost, given_up)
            if given_up is not None:
                self._say(f"given up, as accepted: {given_up}")
                texts[place.number] = msgspec.json.encode(kept).decode()
        if texts != list(directory.offsets(position)):
            directory.replace_offsets(position, texts)
        return {TOPICS_ENTRY: msgspec.json.encode(KnownTopics(ids=ids, lost=lost)).decode()}

    def acknowledged(self, checkpoint_id: int, state: TaskState) -> None:
        """A snapshot of a task is done: remember its offsets.

        Raises ``InputError`` if rows before them may be of a topic that was made again.
        """
        text = state.entries.get(f"offsets/{state.position}")
        places = self._places.get(state.vertex, ())
        if text is None or not places:
            return
        texts = decode_offsets(text).offsets
        reached = [(place, _offsets(texts[place.number])) for place in places]
        for place, offsets in reached:
            self._check_same_topics(state.vertex, place, offsets)
        commits = tuple(
            _Commit(group=group, options=place.options, offsets=offsets)
            for place, offsets in reached
            if offsets and (group := place.options.get(GROUP, self._group))
        )
        if commits:
            with self._lock:
                self._acknowledged[state.vertex, checkpoint_id] = commits

    def completed(self, vertex: VertexId, checkpoint_id: int) -> None:
        """A checkpoint has completed: commit its offsets in the background."""
        with self._lock:
            due = self._acknowledged.pop((vertex, checkpoint_id), ())
            for older in [key for key in self._acknowledged if key[0] == vertex]:
                if older[1] < checkpoint_id:
                    del self._acknowledged[older]
            if due:
                self._due[vertex] = due
                if self._committing is None:
                    self._committing = in_background(self._commit)

    def close(self) -> None:
        """The job has ended: wait a moment for its last offsets, which no other would make up."""
        # A last snapshot may still add one.
        while self._brokers:
            self._brokers.popitem()[1].close()
        committing = self._committing
        if committing is not None:
            wait((committing,), timeout=_LAST_S)

    def _commit(self) -> None:
        while True:
            with self._lock:
                if not self._due:
                    self._committing = None
                    return
                _, commits = self._due.popitem()
            for commit in commits:
                try:
                    with Brokers(self._session.sparkContext, commit.options) as brokers:
                        brokers.commit(commit.group, commit.offsets)
                except Exception as error:
                    # The next checkpoint makes up for it.
                    _log.warning(
                        "Cannot commit offsets to the consumer group %r: %s",
                        commit.group,
                        first_cause(error),
                    )

    def _checked(
        self, place: KafkaPlace, offsets: Offsets, before: Mapping[str, str]
    ) -> tuple[dict[str, str], Offsets, str | None]:
        with (
            self._asking(place),
            Brokers(self._session.sparkContext, place.options) as brokers,
        ):
            return check_place(
                replace(place, options=_named(place, brokers)),
                brokers,
                offsets,
                before,
                accepted=bool(self._accepted & {place.step, place.name}),
            )

    def _check_same_topics(self, vertex: VertexId, place: KafkaPlace, offsets: Offsets) -> None:
        key = (vertex, place.number)
        if offsets == self._known[key]:
            return
        with self._asking(place):
            if key not in self._brokers:
                self._brokers[key] = Brokers(self._session.sparkContext, place.options)
            topics = self._brokers[key].topics(offsets)
        ids = self._ids[key]
        for name, topic in topics.items():
            if ids.setdefault(name, topic.id) != topic.id:
                raise InputError(
                    f"Topic {name!r} was deleted and made again while source {place.name!r} read"
                    " it: what was read since the newest checkpoint may be of either, and is not"
                    " committed."
                )
        self._known[key] = offsets

    @contextmanager
    def _asking(self, place: KafkaPlace) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            raise InputError(
                f"Cannot ask the brokers at {place.options.get('kafka.bootstrap.servers')} for the"
                f" topics of source {place.name!r}: {first_cause(error)}. Check the address and"
                " the way to them."
            ) from error

    def _say_isolation(self, place: KafkaPlace) -> None:
        if not place.is_committed:
            self._say(f"source {place.name!r} {UNCOMMITTED}")

    def _say(self, line: str) -> None:
        """Once, however many attempts there are."""
        if line not in self._said:
            self._said.add(line)
            self._note(line)


def _known(restored: TaskState) -> KnownTopics:
    text = restored.entries.get(TOPICS_ENTRY)
    try:
        return KnownTopics() if text is None else decoded(text, KnownTopics)
    except ValueError as error:
        raise CheckpointDamagedError(
            f"The entry {TOPICS_ENTRY} of vertex {restored.vertex!r} is not as it was written"
            f" ({error}): use another checkpoint.",
            path="",
            file=TOPICS_ENTRY,
        ) from error


def _offsets(text: str) -> Offsets:
    try:
        return decoded(text, Offsets)
    except ValueError:
        # Before its first batch with data, a source has no offset.
        return {}


def _named(place: KafkaPlace, brokers: Brokers) -> dict[str, str]:
    """The options with the topics that a pattern stands for now."""
    pattern = place.options.get("subscribepattern")
    if pattern is None:
        return dict(place.options)
    try:
        topics = [topic for topic in brokers.names() if re.fullmatch(pattern, topic)]
    except re.error:
        # A pattern that only Java knows.
        topics = []
    return {**place.options, "subscribe": ",".join(topics)}
