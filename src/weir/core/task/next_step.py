"""``next_step``: what a task does next, as an ordered table (MISSION B, E; PROTOCOL P6, P28).

After every event the task describes its ``Situation`` and takes the step of the first row of
``NEXT_STEPS`` that holds. The order of the rows is law. A step after which more may be possible
(``Step.goes_on``) is followed by another look at the table; its row does not hold again, so the
task comes to rest after a few steps::

    the planning call is held, checkpoint 5 may overtake    OVERTAKE
    5 waits                                                 TAKE; the call stays held
    its synchronous part is over                            ANSWER

This module only decides: ``StreamTask`` collects the situation and carries out the step.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from weir.core.messages.protocol import TriggerCheckpoint
from weir.core.status import Records


class Step(enum.Enum):
    """What a task does next."""

    #: Nothing, until the next event.
    WAIT = "WAIT"
    #: Take no more triggers.
    CLOSE = "CLOSE"
    #: Close the operators, then end, as soon as nothing is in progress.
    FINISH = "FINISH"
    #: Let a barrier pass the unread segments before it, so that its checkpoint can be taken.
    OVERTAKE = "OVERTAKE"
    #: Take the first waiting checkpoint.
    TAKE = "TAKE"
    #: Let no more records flow.
    END_RECORDS = "END_RECORDS"
    #: Finish the operators: windows and timers fire.
    DRAIN = "DRAIN"
    #: Let a batch read what is admitted from the channels.
    ANSWER = "ANSWER"
    #: The same with nothing to read, once per position.
    ANSWER_IDLE = "ANSWER_IDLE"
    #: Let a batch carry a barrier to the operators; it reads nothing and gets no watermark (P6).
    ANSWER_BARRIER = "ANSWER_BARRIER"
    #: Let a batch carry events to the operators; it reads nothing and gets no watermark (P2).
    ANSWER_EVENTS = "ANSWER_EVENTS"

    @property
    def goes_on(self) -> bool:
        """Whether another step may follow at once."""
        return self in (Step.CLOSE, Step.OVERTAKE, Step.END_RECORDS)


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Everything that decides a task's next step.

    By default a batch of a source is running, and no checkpoint waits.
    """

    #: The task takes no more triggers.
    closing: bool = False
    #: Everything is committed and processed by the consumers, and no checkpoint waits, neither as a
    #: trigger nor as a barrier in a channel.
    is_done: bool = False
    #: The task initializes, or a synchronous part runs.
    is_busy: bool = False
    #: A planning call is held: the query is blocked.
    is_held: bool = False
    records: Records = Records.FLOWING

    #: The checkpoint whose barrier may overtake unread segments now.
    overtaking: int | None = None
    #: The checkpoint to be taken next, if it is due.
    first: TriggerCheckpoint | None = None
    #: Barriers have brought ``first``.
    is_aligned: bool = False
    #: It has waited so long that watermarks before its barrier no longer take effect first.
    is_late: bool = False
    #: The state at the last complete batch can be read while the next one runs.
    outlives_batch: bool = False

    #: Operators prepare for a barrier in a batch of their own before it (P6).
    operators_prepare: bool = False
    #: The newest checkpoint for which they have.
    prepared: int = 0
    #: Operators have code of their own for checkpoints, and take no snapshot while they finish.
    operators_take_part: bool = False
    #: Operators have had no batch yet, which they need before they finish (E2).
    operators_want_batch: bool = False

    #: How the input has ended: ENDED if it is exhausted, STOPPED if a producer was stopped without
    #: a drain.
    input_end: Records | None = None
    #: The job is being stopped with a checkpoint, not with a savepoint, as far as is known.
    stops_with_checkpoint: bool = False
    #: After the last records, the query was asked once whether their watermark releases rows.
    asked_again: bool = False
    has_channels: bool = False
    #: A watermark that was reached without a segment is still to be sent to the query.
    has_unsent_watermark: bool = False
    #: A watermark takes effect in the next batch, though it reads no segment.
    watermark_takes_effect: bool = False

    #: A consumer lags so far that no batch may read or emit.
    is_full: bool = False
    #: A batch may carry events although a consumer lags.
    carries_events: bool = False
    #: Events wait for a batch, which cannot but read, and there is room for it beyond the bound.
    reads_for_events: bool = False
    #: The query reads channels, and a batch would do nothing.
    has_nothing_to_do: bool = False
    #: A call at this position was answered with nothing to read.
    was_idle: bool = False

    @property
    def ends_job(self) -> bool:
        """Whether ``first`` is the savepoint of a stop."""
        return self.first is not None and self.first.kind.is_synchronous

    @property
    def prepares_for(self) -> int | None:
        """The checkpoint for which operators must still prepare: overtaking, or ``first`` (P6).

        Not for the savepoint of a stop with a drain before it, in which operators emit all rows.
        """
        n = self.overtaking
        if n is None and self.first is not None:
            drains = self.first.drain or self.input_end is Records.ENDED
            n = None if self.ends_job and drains else self.first.checkpoint_id
        wants = self.may_run and self.operators_prepare and n is not None and self.prepared < n
        return n if wants else None

    @property
    def waits_for_watermarks(self) -> bool:
        """Whether watermarks before the barrier of ``first`` take effect before it is taken."""
        return self.is_aligned and not (self.is_late or self.is_full)

    @property
    def waits_for_barrier(self) -> bool:
        """Whether records that were stopped upstream go on until the barrier is aligned."""
        return self.operators_prepare or self.stops_with_checkpoint

    @property
    def takes_watermarks(self) -> bool:
        """Whether watermarks before an aligned barrier take effect, in a batch without segments.

        Operators that prepare have got them.
        """
        return (
            self.first is not None
            and self.may_run
            and self.watermark_takes_effect
            and self.waits_for_watermarks
            and not self.operators_prepare
        )

    @property
    def records_become(self) -> Records | None:
        """How the records end now (MISSION E2): ENDED with a drain, STOPPED without; else None."""
        if not self.may_run:
            return None
        if self.input_end is Records.STOPPED and self.first is None and self.waits_for_barrier:
            # Rows that operators emit before the barrier, or that watermarks before it release,
            # precede the end of the records (P6, P28).
            return None
        if self.input_end is None and not self.has_channels and self.ends_job:
            drains = self.first is not None and self.first.drain
            return Records.ENDED if drains else Records.STOPPED
        return self.input_end

    @property
    def rests_until_next_start(self) -> bool:
        """Whether the records are stopped, with a checkpoint from which the next start goes on."""
        return self.records_become is Records.STOPPED and self.stops_with_checkpoint

    @property
    def drains_before(self) -> bool:
        """Whether the drain comes before ``first``.

        A savepoint that ends the job covers all window output, and an operator with code of its own
        for snapshots takes none while it finishes. Any other checkpoint is taken at the position
        before the drain (PROTOCOL P8).
        """
        waits = self.ends_job or self.operators_take_part
        return waits and self.records in (Records.ENDED, Records.DRAINING)

    @property
    def may_take(self) -> bool:
        """Whether ``first`` can be taken: while the state is stable, or beside a batch."""
        return self.is_stable or (self.outlives_batch and not self.ends_job)

    @property
    def is_stable(self) -> bool:
        """Whether the state does not change, so that a snapshot can be taken."""
        return self.is_held or self.records is not Records.FLOWING

    @property
    def may_run(self) -> bool:
        """Whether a batch with records may start."""
        return self.is_held and self.records is Records.FLOWING

    @property
    def rests(self) -> bool:
        """Whether the query has nothing to do, and its records have not ended."""
        return self.has_nothing_to_do and self.records is Records.FLOWING


#: The first row that holds decides.
NEXT_STEPS: tuple[tuple[Step, Callable[[Situation], bool]], ...] = (
    (Step.FINISH, lambda now: now.closing),
    # Also while it is busy: from then on triggers are declined (P32).
    (Step.CLOSE, lambda now: now.is_done),
    (Step.WAIT, lambda now: now.is_busy),
    # A barrier that may overtake unread segments does so. Before a checkpoint is taken, operators
    # prepare for it in a batch that reads nothing more (P6), but after the watermarks before it.
    (Step.ANSWER_BARRIER, lambda now: now.overtaking is not None and now.prepares_for is not None),
    (Step.OVERTAKE, lambda now: now.overtaking is not None),
    (
        Step.ANSWER,
        lambda now: (
            now.prepares_for is not None and now.has_unsent_watermark and now.waits_for_watermarks
        ),
    ),
    (Step.ANSWER_BARRIER, lambda now: now.prepares_for is not None),
    # Records end when those of all channels have ended, when the readers have reported their end,
    # or when the job is stopped. Operators have a first batch before they finish.
    (
        Step.ANSWER_EVENTS,
        lambda now: now.records_become is Records.ENDED and now.operators_want_batch,
    ),
    # If the job stops with a checkpoint, what the last watermarks release comes before that: those
    # of the channels, and then the query's own, which it has for the batch after its last.
    (Step.ANSWER, lambda now: now.takes_watermarks and now.rests_until_next_start),
    (
        Step.ANSWER_IDLE,
        lambda now: (
            now.rests_until_next_start
            and now.has_channels
            and now.waits_for_watermarks
            and not (now.was_idle or now.asked_again)
        ),
    ),
    (Step.END_RECORDS, lambda now: now.records_become is not None),
    # Watermarks before an aligned barrier take effect in a batch that reads no segment.
    (Step.ANSWER, lambda now: now.takes_watermarks),
    # The savepoint of a stop is taken only after the drain.
    (Step.TAKE, lambda now: now.first is not None and now.may_take and not now.drains_before),
    (Step.DRAIN, lambda now: now.records is Records.ENDED),
    (Step.WAIT, lambda now: not now.is_held or now.records is Records.STOPPED),
    # While a consumer lags too far, a batch at most carries events (P2).
    (Step.ANSWER_EVENTS, lambda now: now.is_full and now.carries_events),
    (Step.ANSWER, lambda now: now.is_full and now.reads_for_events),
    (Step.WAIT, lambda now: now.is_full),
    # A query with nothing to read rests, after it was asked once: it may run a batch without
    # records for the last batch's new watermark.
    (Step.WAIT, lambda now: now.rests and now.was_idle),
    (Step.ANSWER_IDLE, lambda now: now.rests),
    (Step.ANSWER, lambda now: True),
)


def next_step(situation: Situation) -> Step:
    """The step of the first row that holds."""
    return next(step for step, holds in NEXT_STEPS if holds(situation))
