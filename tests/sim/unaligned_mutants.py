"""Deliberately broken variants of unaligned checkpoints; see ``mutants.py``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from tests.sim.mutants import Mutant, _jobs_with, _with

from weir.core.messages.channel import ChannelAppended, Segment
from weir.core.messages.task import TakeSnapshot
from weir.core.task import batch_bound as batch_bound_module
from weir.core.task import output_channels as output_channels_module
from weir.core.task.input_gate import InputGate
from weir.core.task.plan import TaskPlan
from weir.core.task.snapshots import OpenSnapshots
from weir.core.types import SnapshotKind, TaskState
from weir.runtime import dispatcher as dispatcher_module
from weir.runtime.dispatcher import restored_entries
from weir.sim.own.queries import SimQuery


def segments_in_flight_lost_at_the_restore() -> AbstractContextManager[None]:
    """The channels of a new attempt are empty, as after an aligned checkpoint (P27)."""

    def ends_only(
        plan: TaskPlan, state: TaskState | None, running: Collection[str]
    ) -> Iterator[ChannelAppended]:
        entries = restored_entries(plan, state, running)
        return (one for one in entries if not isinstance(one.entries[0], Segment))

    return _with(patch.object(dispatcher_module, "restored_entries", ends_only))


def a_snapshot_with_one_of_the_segments_that_it_passes() -> AbstractContextManager[None]:
    """A snapshot has only the first of the segments that a barrier overtakes in a channel (P27)."""
    real = InputGate._pass

    def first_only(self: InputGate, name: str, place: Any) -> list[Any]:
        return real(self, name, place)[:1]

    return _with(patch.object(InputGate, "_pass", first_only))


def an_offset_behind_what_was_overtaken() -> AbstractContextManager[None]:
    """A snapshot's offsets are the barrier's position, not what the query has read (P7, P27)."""
    take = SimQuery.take

    def take_behind(self: SimQuery, effect: TakeSnapshot) -> None:
        read = self._channels._committed
        passed = {one.channel: one.position for one in effect.in_flight}
        self._channels._committed = read | passed
        take(self, effect)
        self._channels._committed = read

    return _with(
        patch.object(SimQuery, "take", take_behind),
        patch.object(InputGate, "misread", lambda self, positions: None),
        patch.object(InputGate, "validate", lambda self: None),
    )


def a_segment_deleted_before_its_snapshot_has_it() -> AbstractContextManager[None]:
    """The producer is notified that a segment was read while a snapshot still copies it (P27)."""
    return _with(patch.object(OpenSnapshots, "channels_in_use", frozenset()))


def a_savepoint_that_overtakes() -> AbstractContextManager[None]:
    """The barrier of a savepoint overtakes unread segments, as a checkpoint's barrier may (P27)."""

    def overtaking(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            with patch.object(SnapshotKind, "may_overtake", property(lambda self: True)):
                return real(*arguments)

        return call

    return _with(
        patch.object(InputGate, "_standing", overtaking(InputGate._standing)),
        patch.object(InputGate, "has_waited", overtaking(InputGate.has_waited)),
    )


def a_trigger_that_ignores_restored_segments() -> AbstractContextManager[None]:
    """A task whose producers have finished takes a snapshot before it has read the rest (P31)."""
    return _with(
        patch.object(InputGate, "has_open_channel", property(lambda self: False)),
        # Producers run far ahead and a batch reads one segment, so there is more to ignore.
        patch.object(output_channels_module, "_BATCHES_AHEAD", 100),
        patch.object(batch_bound_module, "FIRST", 1),
        patch.object(batch_bound_module, "_MOST", 1),
        _jobs_with(
            aligned_timeout_ms=0, max_concurrent_checkpoints=1, timeout_ms=1_000, reader_us=50_000
        ),
    )


UNALIGNED_MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=variant.__name__, variant=variant, says=tuple(says), known_seed=known_seed)
    for variant, known_seed, *says in (
        (segments_in_flight_lost_at_the_restore, 25, "missing"),
        (a_snapshot_with_one_of_the_segments_that_it_passes, 331, "missing", "at the barrier"),
        (an_offset_behind_what_was_overtaken, 25, "missing"),
        (a_segment_deleted_before_its_snapshot_has_it, 513, "is gone"),
        (a_savepoint_that_overtakes, 3, "in flight"),
        (a_trigger_that_ignores_restored_segments, 744, "missing"),
    )
)
