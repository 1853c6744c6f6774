"""``SubtaskGateway``: an event goes out once all checkpoints it follows are open.

That is its law (MISSION C3 to C9).
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from weir.core.coordination.coordinator_holder import SubtaskGateway
from weir.core.messages.coordination import DeliverEvent
from weir.errors import InvariantError


def event(number: int) -> DeliverEvent:
    """The event with this number."""
    return DeliverEvent(operator="op", subtask=0, number=number, payload={})


def numbers(events: list[DeliverEvent]) -> list[int]:
    """The numbers of these events."""
    return [event.number for event in events]


class Model:
    """Each event remembers the checkpoints that were closed when it was sent."""

    def __init__(self) -> None:
        self.closed: set[int] = set()
        self.held: list[tuple[int, set[int]]] = []

    def send(self, number: int) -> list[int]:
        self.held.append((number, set(self.closed)))
        return self.release()

    def open(self, checkpoint_id: int) -> list[int]:
        for follows in (self.closed, *(follows for _, follows in self.held)):
            follows.discard(checkpoint_id)
        return self.release()

    def release(self) -> list[int]:
        free = [number for number, follows in self.held if not follows]
        self.held = [(number, follows) for number, follows in self.held if follows]
        return free


class GatewayAndModel(RuleBasedStateMachine):
    """Any order of sending, marking, closing, opening and failing."""

    def __init__(self) -> None:
        super().__init__()
        self.gateway = SubtaskGateway()
        self.model = Model()
        self.sent = 0
        self.newest = 0
        self.marked: set[int] = set()
        self.delivered: list[int] = []

    @rule()
    def send(self) -> None:
        self.sent += 1
        passes = self.gateway.send(event(self.sent))
        assert self.model.send(self.sent) == ([self.sent] if passes else [])
        self.delivered += [self.sent] if passes else []

    @precondition(lambda self: self.newest not in self.marked - self.model.closed)
    @rule()
    def mark(self) -> None:
        """One coordinator snapshot at a time: the previous one must be taken or aborted."""
        self.newest += 1
        self.gateway.mark(self.newest)
        self.marked.add(self.newest)

    @precondition(lambda self: self.newest > 0)
    @rule()
    def close_newest(self) -> None:
        if self.newest in self.model.closed:
            return
        assert self.gateway.close(self.newest) == (self.newest in self.marked)
        self.model.closed |= {self.newest} & self.marked

    @precondition(lambda self: self.newest > 0)
    @rule(data=st.data())
    def open(self, data: st.DataObject) -> None:
        checkpoint_id = data.draw(st.integers(1, self.newest))
        released = numbers(self.gateway.open(checkpoint_id))
        assert released == self.model.open(checkpoint_id)
        self.marked.discard(checkpoint_id)
        self.delivered += released

    @rule()
    def fail(self) -> None:
        self.gateway.reset()
        self.model = Model()
        self.marked = set()

    @invariant()
    def events_keep_their_order(self) -> None:
        assert self.delivered == sorted(self.delivered)
        assert bool(self.gateway.closed_by) == bool(self.model.closed)


TestGatewayAndModel = GatewayAndModel.TestCase


def test_events_after_two_closed_checkpoints_wait_for_both() -> None:
    """Events held for the newer one join those held for the older one (C9)."""
    gateway = SubtaskGateway()
    for checkpoint_id in (1, 2):
        gateway.mark(checkpoint_id)
        assert gateway.close(checkpoint_id)
        assert not gateway.send(event(checkpoint_id))
    assert gateway.open(2) == []
    assert numbers(gateway.open(1)) == [1, 2]


@pytest.mark.parametrize("checkpoint_id", [1, 2])
def test_ids_of_checkpoints_only_grow(checkpoint_id: int) -> None:
    """A lower id would let an event of an older epoch pass."""
    gateway = SubtaskGateway()
    gateway.mark(2)
    message = f"checkpoint {checkpoint_id} marked after checkpoint 2"
    with pytest.raises(InvariantError, match=message):
        gateway.mark(checkpoint_id)


@pytest.mark.parametrize("call", [SubtaskGateway.close, SubtaskGateway.open])
def test_a_checkpoint_that_was_never_marked_is_a_bug(call: object) -> None:
    """The gateway cannot know it."""
    assert callable(call)
    with pytest.raises(InvariantError, match="checkpoint 1 was never marked"):
        call(SubtaskGateway(), 1)
