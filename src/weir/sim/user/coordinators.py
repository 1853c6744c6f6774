"""Laws of coordinators and enumerators that need no job: each is checked on a fresh object.

1. A coordinator that was reset to a checkpoint, and then takes a snapshot, gives the state of that
   checkpoint (MISSION C2, C5). So does an enumerator that was restored.
2. Splits that an enumerator gets back are assigned again, or are in its next snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from weir.coordinators.base import OperatorCoordinator
from weir.core.types import OperatorId, Payload
from weir.runtime.failures import describe
from weir.sources.base import Source, SplitEnumerator, encode_splits
from weir.sources.coordinator import SourceCoordinator


class _Context:
    """``CoordinatorContext`` and ``SplitEnumeratorContext`` of an object outside of any job."""

    def __init__(self, operator_id: OperatorId, parallelism: int) -> None:
        self.operator_id = operator_id
        self.current_parallelism = parallelism
        self.registered_readers = frozenset(range(parallelism))
        self.assigned: list[Any] = []
        self.work: list[Callable[[], None]] = []

    def send_event(self, subtask: int, event: Payload) -> None:
        """Nobody receives it."""

    send_event_to_reader = send_event

    def assign_splits(self, splits: Sequence[Any], subtask: int) -> None:
        """Keep the splits."""
        self.assigned.extend(splits)

    def signal_no_more_splits(self, subtask: int) -> None:
        """Nobody hears it."""

    def fail_job(self, message: str) -> None:
        """There is no job."""

    def run_in_coordinator(self, function: Callable[[], None]) -> None:
        """Keep it until ``pump``."""
        self.work.append(function)

    def call_async(
        self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]
    ) -> None:
        """Keep it until ``pump``."""
        self.work.append(lambda: then(work(), None))

    def schedule(self, delay_ms: int, function: Callable[[], None]) -> None:
        """Keep it until ``pump``."""
        self.work.append(function)

    def pump(self, limit: int = 20) -> None:
        """Do what waits, and what that leads to, up to a limit."""
        for _ in range(limit):
            if not self.work:
                return
            self.work.pop(0)()


def changed_by_restore(
    name: OperatorId,
    coordinator: OperatorCoordinator,
    parallelism: int,
    checkpoint_id: int,
    state: Payload | None,
) -> str | None:
    """How a fresh coordinator breaks law 1; None if it does not."""
    try:
        if isinstance(coordinator, SourceCoordinator):
            if state is None:
                return None
            context = _Context(name, parallelism)
            enumerator = coordinator.source.restore_enumerator(context, state)
            again: Any = enumerator.snapshot_state(checkpoint_id)
        else:
            own: Any = _Context(name, parallelism)
            coordinator.start(own)
            coordinator.reset_to_checkpoint(checkpoint_id, state)
            again = coordinator.checkpoint_coordinator(checkpoint_id + 1)
    except Exception as error:
        return f"coordinator of {name!r}: restoring the state {state} fails: {describe(error)}"
    if isinstance(again, Future) or _ordered(again) == _ordered(state):
        return None
    return (
        f"coordinator of {name!r}: a snapshot right after a restore must be the restored state, but"
        f" {state} came back as {again}"
    )


def splits_lost(name: OperatorId, source: Source[Any]) -> str | None:
    """How a fresh enumerator breaks law 2; None if it does not."""
    context = _Context(name, 2)
    enumerator: SplitEnumerator[Any] = source.create_enumerator(context)
    enumerator.start()
    context.pump()
    enumerator.add_reader(0)
    enumerator.handle_split_request(0)
    context.pump()
    if not context.assigned:
        return None
    back = context.assigned[:1]
    context.assigned = []
    enumerator.add_splits_back(back, 0)
    kept = repr(enumerator.snapshot_state(1))
    for _ in range(50):
        before = len(context.assigned)
        enumerator.handle_split_request(1)
        context.pump()
        if len(context.assigned) == before:
            break
    again = {one.split_id for one in context.assigned}
    encoded = encode_splits(source.split_serializer(), back)[0]["split"]
    if back[0].split_id in again and repr(encoded) in kept:
        return None
    lacks = "its next snapshot" if back[0].split_id in again else "any reader"
    return (
        f"enumerator of {name!r}: a split that it gets back (add_splits_back) must be assigned"
        f" again, but {back[0].split_id!r} does not reach {lacks}"
    )


def _ordered(value: Any) -> Any:
    """A JSON value without the order of its lists."""
    if isinstance(value, dict):
        return {key: _ordered(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return sorted((_ordered(one) for one in value), key=repr)
    return value
