"""Laws of coordinators, enumerators and master hooks.

1. One that was reset to a checkpoint, and then takes a snapshot, gives the state of that checkpoint
   (MISSION C2, C5), and does so again after a second reset. It does not matter what it has done
   before. Keys of the state in ``changed_by_reset`` are not compared. Without a checkpoint, the
   state is that of the first such reset. Checked in completed checkpoints on fresh objects, and
   whenever a living object is reset.
2. Splits that an enumerator gets back are assigned again, or are in its next snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from copy import deepcopy
from typing import Any

from weir.coordinators.base import CoordinatorContext, OperatorCoordinator
from weir.core.types import OperatorId, Payload
from weir.runtime.failures import describe
from weir.sim.user.interleaving import Interleaving
from weir.sources.base import Source, SplitEnumerator, encode_splits
from weir.sources.coordinator import SourceCoordinator


class _Context:
    """``CoordinatorContext`` and ``SplitEnumeratorContext`` of an object outside of any job."""

    def __init__(self, operator_id: OperatorId, parallelism: int) -> None:
        self.operator_id = operator_id
        self.current_parallelism = parallelism
        self.registered_readers = frozenset(range(parallelism))
        self.available_now = False
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


class Resets:
    """Checks law 1 of one coordinator or hook, fresh or living."""

    def __init__(self, what: str) -> None:
        self._what = what
        #: Its snapshot after the first reset without state; a list, since it may be None.
        self._initial: list[Any] = []

    def broken_law(
        self, state: Payload | None, snapshot: Callable[[Any], Any], beside: Collection[str] = ()
    ) -> str | None:
        """How it breaks the law; None if it does not.

        ``snapshot`` resets it to a copy of the state and takes a snapshot. ``beside``:
        ``changed_by_reset``.
        """
        try:
            found = [snapshot(deepcopy(state)) for _ in range(2)]
        except Exception as error:
            return f"{self._what}: restoring the state {state} fails: {describe(error)}"
        if any(isinstance(one, Future) for one in found):
            return None
        if state is None:
            self._initial = self._initial or found[:1]
        [expected] = self._initial if state is None else [state]
        for often, again in zip(("a reset", "a second reset"), found, strict=True):
            if _ordered(again, beside) != _ordered(expected, beside):
                return (
                    f"{self._what}: a snapshot right after {often} must be the restored state,"
                    f" whatever happened before, but {expected} came back as {again}"
                )
        return None


class _Switch:
    """The context of a coordinator: the job's or, during a check, one outside of any job."""

    def __init__(self, job: CoordinatorContext) -> None:
        self.job = job
        self.current: Any = job

    def __getattr__(self, name: str) -> Any:
        return getattr(self.current, name)


class AuditedCoordinator:
    """Passes calls on to a user's coordinator, and checks law 1 before each reset.

    What the coordinator asks of its context during the check has no effect. The last reset is the
    job's own.
    """

    def __init__(
        self,
        name: OperatorId,
        coordinator: OperatorCoordinator,
        interleaving: Interleaving,
        broken: Callable[[str], None],
    ) -> None:
        """``broken`` gets the text of a broken law."""
        self._name = name
        self._coordinator = coordinator
        self._interleaving = interleaving
        self._broken = broken
        self._resets = _resets(name, coordinator)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coordinator, name)

    def start(self, context: CoordinatorContext) -> None:
        """Start it with a context that can be exchanged."""
        self._context: Any = _Switch(context)
        self._coordinator.start(self._context)

    def reset_to_checkpoint(self, checkpoint_id: int | None, state: Payload | None) -> None:
        """Reset it."""
        switch = self._context
        switch.current = _Context(self._name, switch.job.current_parallelism)
        with self._interleaving.undisturbed():
            wrong = _broken_law(
                self._resets, self._coordinator, switch.current, checkpoint_id, state
            )
        switch.current = switch.job
        if wrong is not None:
            self._broken(wrong)
        self._coordinator.reset_to_checkpoint(checkpoint_id, state)


def changed_by_restore(
    name: OperatorId,
    coordinator: OperatorCoordinator,
    parallelism: int,
    checkpoint_id: int,
    state: Payload | None,
) -> str | None:
    """How a fresh coordinator breaks law 1; None if it does not."""
    context: Any = _Context(name, parallelism)
    coordinator.start(context)
    return _broken_law(_resets(name, coordinator), coordinator, context, checkpoint_id, state)


def _resets(name: OperatorId, coordinator: OperatorCoordinator) -> Resets:
    one = coordinator.source if isinstance(coordinator, SourceCoordinator) else coordinator
    return Resets(f"coordinator of {name!r} ({type(one).__name__})")


def _broken_law(
    resets: Resets,
    coordinator: OperatorCoordinator,
    context: _Context,
    checkpoint_id: int | None,
    state: Payload | None,
) -> str | None:
    next_id = (checkpoint_id or 0) + 1
    if not isinstance(coordinator, SourceCoordinator):

        def snapshot(given: Payload | None) -> Any:
            coordinator.reset_to_checkpoint(checkpoint_id, given)
            context.work.clear()
            taken: Any = coordinator.checkpoint_coordinator(next_id)
            if not isinstance(taken, Future):
                return taken
            context.pump()
            failed = taken.cancelled() or (taken.done() and taken.exception() is not None)
            return taken.result() if taken.done() and not failed else taken

        return resets.broken_law(state, snapshot, coordinator.changed_by_reset)
    source, beside = coordinator.source, set[str]()

    def enumerated(given: Payload | None) -> Any:
        if given is None:
            enumerator = source.create_enumerator(context)
        else:
            enumerator = source.restore_enumerator(context, given)
        beside.update(enumerator.changed_by_reset)
        taken = enumerator.snapshot_state(next_id)
        enumerator.close()
        return taken

    return resets.broken_law(state, enumerated, beside)


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


def _ordered(value: Any, without: Collection[str] = ()) -> Any:
    """A JSON value without the order of its lists, and without some keys."""
    if isinstance(value, dict):
        return {key: _ordered(one) for key, one in value.items() if key not in without}
    if isinstance(value, list | tuple):
        return sorted((_ordered(one) for one in value), key=repr)
    return value
