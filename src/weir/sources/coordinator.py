"""``SourceCoordinator``: runs a split enumerator as an operator coordinator (Flink: the same).

The messages::

    coordinator  {"attempt": "7-2"} to a reader that runs (restored checkpoint, attempt)
                 (forces a batch: a resting query runs no batch on its own)
    reader       {"request": "7-2"}
                 (once, until splits or their end have come; repeated in each attempt, since a
                 new enumerator does not know it, and ignored if it is from an earlier attempt)
    coordinator  {"splits": [{"version": 1, "split": {...}}, ...]}
    coordinator  {"no_more_splits": true}
    both         {"event": {...}} from the user's code

Operator events are delivered exactly once, in order (MISSION C2 to C7), so a split that was
assigned before the enumerator's snapshot for a checkpoint is in the reader's snapshot for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic

from weir.coordinators.base import OperatorCoordinator, SubtaskGateway
from weir.core.types import Payload
from weir.errors import CoordinatorStateError, PipelineError
from weir.sources.base import Source, SplitEnumerator, SplitT, encode_splits


class SourceCoordinator(OperatorCoordinator, Generic[SplitT]):
    """The coordinator of a source's step. The module's docstring has the messages."""

    def __init__(self, source: Source[SplitT], *, available_now: bool = False) -> None:
        """``available_now``: see ``SplitEnumeratorContext``."""
        self.source = source
        self.available_now = available_now
        self._serializer = source.split_serializer()
        self._enumerator: SplitEnumerator[SplitT] | None = None
        #: To the readers that run, by subtask.
        self._gateways: dict[int, SubtaskGateway] = {}
        #: The readers with an open request.
        self._asking: set[int] = set()
        self._restored: int | None = None
        #: The name of the attempt, for requests.
        self._attempt = ""
        #: The splits assigned since the newest snapshot, and before each snapshot that has not
        #: ended, with their subtasks.
        self._assigned: list[tuple[int, SplitT]] = []
        self._assigned_before: dict[int, list[tuple[int, SplitT]]] = {}
        #: When the enumerator was last closed, the splits that no reader had as of the newest
        #: snapshot; None if it does not know them.
        self.unassigned: int | None = None

    # -- the contract of coordinators

    def reset_to_checkpoint(self, checkpoint_id: int | None, state: Payload | None) -> None:
        """Start an enumerator with this state, or without state.

        Raises ``CoordinatorStateError`` if the source does not take the state.
        """
        self.close()
        self._gateways, self._asking = {}, set()
        self._restored = checkpoint_id
        self._assigned, self._assigned_before = [], {}
        context = _EnumeratorContext(self)
        if state is None:
            self._enumerator = self.source.create_enumerator(context)
        else:
            try:
                self._enumerator = self.source.restore_enumerator(context, state)
            except (LookupError, TypeError, ValueError) as error:
                raise CoordinatorStateError(
                    f"The checkpoint's state of source {self.context.operator_id!r} is invalid"
                    f" ({error}): restore from another checkpoint or savepoint."
                ) from error
        self._enumerator.start()

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: SubtaskGateway) -> None:
        """A reader runs: wake it, so that it goes on with the splits that it has."""
        self._gateways[subtask] = gateway
        self._attempt = f"{self._restored}-{attempt}"
        gateway.send_event({"attempt": self._attempt})
        self._running.add_reader(subtask)

    def execution_attempt_failed(self, subtask: int, attempt: int, message: str) -> None:
        """A reader does not run any more: nothing can be assigned to it."""
        self._gateways.pop(subtask, None)
        self._asking.discard(subtask)

    def subtask_reset(self, subtask: int, checkpoint_id: int | None) -> None:
        """Return to the enumerator what was assigned to the reader after the checkpoint."""
        self._gateways.pop(subtask, None)
        self._asking.discard(subtask)
        after = [
            (number, splits)
            for number, splits in sorted(self._assigned_before.items())
            if checkpoint_id is None or number > checkpoint_id
        ]
        lists = [*(splits for _, splits in after), self._assigned]
        lost = [split for assigned in lists for to, split in assigned if to == subtask]
        for assigned in lists:
            assigned[:] = [(to, split) for to, split in assigned if to != subtask]
        if lost:
            self._running.add_splits_back(lost, subtask)

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Payload) -> None:
        """Pass a request or an event on, but no request of an earlier attempt."""
        if "event" in event:
            self._running.handle_source_event(subtask, event["event"])
        elif event.get("request") == self._attempt and subtask not in self._asking:
            self._asking.add(subtask)
            self._running.handle_split_request(subtask)

    def handle_request(self, request: Payload) -> Payload | None:
        """Pass a request from outside the job on."""
        return self._running.handle_request(request)

    def checkpoint_coordinator(self, checkpoint_id: int) -> Payload:
        """The enumerator's state."""
        self._assigned_before[checkpoint_id] = self._assigned
        self._assigned = []
        return self._running.snapshot_state(checkpoint_id)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """What was assigned before it cannot get lost any more."""
        for number in [earlier for earlier in self._assigned_before if earlier <= checkpoint_id]:
            del self._assigned_before[number]
        self._running.notify_checkpoint_complete(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Pass it on."""
        self._running.notify_checkpoint_aborted(checkpoint_id)

    def close(self) -> None:
        """Close the enumerator."""
        enumerator, self._enumerator = self._enumerator, None
        if enumerator is not None:
            left = enumerator.unassigned_splits()
            self.unassigned = None if left is None else left + len(self._assigned)
            enumerator.close()

    # -- for the enumerator's context

    def assign_splits(self, splits: Sequence[SplitT], subtask: int) -> None:
        """See ``SplitEnumeratorContext``."""
        names = ", ".join(repr(known.split_id) for known in splits)
        gateway = self._gateway(subtask, f"assigned {names} to")
        try:
            encoded = encode_splits(self._serializer, splits)
        except ValueError as error:
            raise PipelineError(
                f"Source {self.context.operator_id!r} cannot assign its splits, since {error}: give"
                " them fields that JSON keeps, or a SplitSerializer of their own."
            ) from error
        gateway.send_event({"splits": encoded})
        self._assigned += [(subtask, split) for split in splits]
        self._asking.discard(subtask)

    def signal_no_more_splits(self, subtask: int) -> None:
        """See ``SplitEnumeratorContext``."""
        if not (self.source.bounded or self.available_now):
            raise PipelineError(
                f"The enumerator of source {self.context.operator_id!r} signals that there are no"
                " more splits, but the source is unbounded: set bounded = True in it."
            )
        self._gateway(subtask, "signalled the end to").send_event({"no_more_splits": True})
        self._asking.discard(subtask)

    def send_event_to_reader(self, subtask: int, event: Payload) -> None:
        """See ``SplitEnumeratorContext``."""
        self._gateway(subtask, "sent an event to").send_event({"event": event})

    @property
    def readers(self) -> frozenset[int]:
        """The subtasks whose readers run."""
        return frozenset(self._gateways)

    def _gateway(self, subtask: int, done: str) -> SubtaskGateway:
        gateway = self._gateways.get(subtask)
        if gateway is None:
            running = ", ".join(map(str, sorted(self._gateways))) or "none"
            raise PipelineError(
                f"The enumerator of source {self.context.operator_id!r} {done} reader {subtask},"
                f" which does not run (those that do: {running}): wait for add_reader."
            )
        return gateway

    @property
    def _running(self) -> SplitEnumerator[SplitT]:
        if self._enumerator is None:
            raise RuntimeError("the enumerator was not started")
        return self._enumerator


class _EnumeratorContext:
    """``SplitEnumeratorContext`` of one attempt."""

    def __init__(self, coordinator: SourceCoordinator[Any]) -> None:
        self._coordinator = coordinator
        self.assign_splits = coordinator.assign_splits
        self.signal_no_more_splits = coordinator.signal_no_more_splits
        self.send_event_to_reader = coordinator.send_event_to_reader
        context = coordinator.context
        self.operator_id = context.operator_id
        self.available_now = coordinator.available_now
        self.fail_job = context.fail_job
        self.run_in_coordinator = context.run_in_coordinator
        self.call_async = context.call_async
        self.schedule = context.schedule

    @property
    def current_parallelism(self) -> int:
        return self._coordinator.context.current_parallelism

    @property
    def registered_readers(self) -> frozenset[int]:
        return self._coordinator.readers
