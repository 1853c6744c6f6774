"""``TaskPlan``: what is known of a vertex before its first attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weir.core.task.output_channels import DEFAULT_BOUND, ChannelBound
from weir.core.types import OperatorId, OperatorState, VertexId


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """The properties of a vertex that its tasks have in every attempt."""

    vertex: VertexId
    operators: tuple[OperatorState, ...]
    #: Its two-phase-commit sinks.
    sinks: tuple[OperatorId, ...]
    #: Whether its records can end.
    bounded: bool
    requires_final_checkpoint: bool
    #: Whether it reads what its sources have when the attempt begins, then rests until it is
    #: stopped.
    available_now: bool = False
    #: The tasks whose channels it reads.
    inputs: tuple[VertexId, ...] = ()
    #: How far its consumers may lag.
    bound: ChannelBound = DEFAULT_BOUND
    #: How long after a checkpoint's first barrier a barrier may overtake records, in milliseconds;
    #: None: never.
    aligned_timeout_ms: int | None = None
    #: Whether it has Python operators. Its first batch runs even without records.
    has_operators: bool = False
    #: Whether any of its operators prepare for a barrier in the batch before it (PROTOCOL P6).
    prepares_for_barriers: bool = False
    #: Some have code of their own for checkpoints: they take no snapshot while they finish, and a
    #: resting query runs a batch that notifies them how a checkpoint ended.
    operators_take_part: bool = False
    #: After how long without rows its source is idle, in milliseconds; None: never.
    idle_after_ms: int | None = None
    #: Whether its source has Weir's own readers.
    has_own_readers: bool = False
    #: Whether those readers say themselves when a checkpoint is due (MISSION B4).
    externally_induced: bool = False
    #: Whether any of its operators have coordinators.
    coordinated: bool = False
    #: For sinks that do not commit at every completed checkpoint, a length of time in milliseconds:
    #: they commit at the first in each such span since the Unix epoch.
    commit_intervals_ms: Mapping[OperatorId, int] = field(default_factory=dict)

    @property
    def may_snapshot_beside_batches(self) -> bool:
        """Whether its state after a batch can be read while the next one runs.

        Not if Python operators take part in the snapshot, or if channels decide what is read.
        """
        return not (self.has_operators or self.inputs)

    @property
    def may_run_without_reading(self) -> bool:
        """Whether a batch can carry events and read nothing: not if Spark reads its source."""
        return self.has_own_readers or bool(self.inputs)
