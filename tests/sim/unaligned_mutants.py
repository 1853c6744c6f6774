"""Deliberately broken variants of unaligned checkpoints; see ``mutants.py``."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from tests.sim.mutants import Mutant, _with

from weir.core import batch_bound as batch_bound_module
from weir.core import output_channels as output_channels_module
from weir.core.channel import ChannelAppended, Segment
from weir.core.input_gate import InputGate
from weir.core.task_snapshots import TaskSnapshots
from weir.core.types import SnapshotKind, TaskState
from weir.kernel import dispatcher as dispatcher_module
from weir.kernel.ports import TaskPlan
from weir.kernel.restored_channels import restored_entries


def segments_in_flight_lost_at_the_restore() -> AbstractContextManager[None]:
    """The channels of a new attempt are empty, as after an aligned checkpoint (P27)."""

    def ends_only(
        plan: TaskPlan, state: TaskState | None, running: Collection[str]
    ) -> Iterator[ChannelAppended]:
        entries = restored_entries(plan, state, running)
        return (one for one in entries if not isinstance(one.entry, Segment))

    return _with(patch.object(dispatcher_module, "restored_entries", ends_only))


def segments_that_were_admitted_count_as_read() -> AbstractContextManager[None]:
    """What was admitted and is in no committed batch is no part of the snapshot (P27)."""
    real = InputGate._pass

    def unadmitted(self: InputGate, name: str, place: Any) -> list[Any]:
        admitted = {one.position for one in self._channels[name].reading if isinstance(one, Segment)}
        return [one for one in real(self, name, place) if one.position not in admitted]

    return _with(patch.object(InputGate, "_pass", unadmitted))


def a_segment_deleted_before_its_snapshot_has_it() -> AbstractContextManager[None]:
    """The producer is told at once that a segment was read, though a snapshot still copies it (P27)."""
    return _with(patch.object(TaskSnapshots, "channels_in_use", frozenset()))


def a_savepoint_that_overtakes() -> AbstractContextManager[None]:
    """The barrier of a savepoint passes what was not read, as that of a checkpoint may (P27)."""
    real = InputGate._standing

    def standing(self: InputGate) -> Any:
        with patch.object(SnapshotKind, "is_savepoint", property(lambda self: False)):
            return real(self)

    return _with(patch.object(InputGate, "_standing", standing))


def a_trigger_that_ignores_restored_segments() -> AbstractContextManager[None]:
    """A task whose producers have finished takes a triggered snapshot at once, whatever is still to be read (P31)."""
    return _with(
        patch.object(InputGate, "has_open_channel", property(lambda self: False)),
        # Producers run far ahead, and a batch reads one segment, so that there is more to ignore.
        patch.object(output_channels_module, "_STEPS_AHEAD", 100),
        patch.object(batch_bound_module, "FIRST", 1),
        patch.object(batch_bound_module, "_MOST", 1),
    )


UNALIGNED_MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=variant.__name__, variant=variant, says=tuple(says), known_seed=known_seed)
    for variant, known_seed, *says in (
        (segments_in_flight_lost_at_the_restore, 1, "missing"),
        (segments_that_were_admitted_count_as_read, 55, "missing", "at the barrier"),
        (a_segment_deleted_before_its_snapshot_has_it, 235, "is gone"),
        (a_savepoint_that_overtakes, 262, "in flight"),
        (a_trigger_that_ignores_restored_segments, 3_898, "missing"),
    )
)
