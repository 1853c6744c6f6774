"""``OpenRequests``: what people have asked one coordinator for, until a checkpoint has it.

An answer is a promise: it is given when what the request has changed is durable, not when it was
made. So each request waits for the first snapshot that the coordinator takes after it, and then for
a completed checkpoint from that one on.
"""

from __future__ import annotations

from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass

from weir.core.types import OperatorId, Payload
from weir.errors import CoordinatorError
from weir.runtime.ports import CoordinatorAnswer

Answer = Future[CoordinatorAnswer]


@dataclass
class _Open:
    answer: Payload | None
    future: Answer
    #: The first snapshot that has it; None until one is taken.
    snapshot: int | None = None


class OpenRequests:
    """Of one coordinator, on its own thread."""

    def __init__(self, operator: OperatorId) -> None:
        self._operator = operator
        self._open: list[_Open] = []

    def handled(self, answer: Payload | None, future: Answer) -> None:
        """The coordinator has done it."""
        self._open.append(_Open(answer, future))

    def snapshot(self, checkpoint_id: int) -> None:
        """The coordinator takes a snapshot, which has all that it has done."""
        for one in self._open:
            one.snapshot = checkpoint_id if one.snapshot is None else one.snapshot

    def completed(self, checkpoint_id: int) -> None:
        """A checkpoint is durable."""
        for one in self._open:
            if one.snapshot is not None and one.snapshot <= checkpoint_id:
                _settle(
                    one.future, CoordinatorAnswer(answer=one.answer, checkpoint_id=checkpoint_id)
                )
        self._open = [one for one in self._open if not one.future.done()]

    def restored(self, checkpoint_id: int | None) -> None:
        """The job went back to a checkpoint, and forgot what that does not have."""
        self.completed(checkpoint_id or 0)
        self._fail("the job was restored from a checkpoint that does not have it: send it again")

    def end(self) -> None:
        """The driver ends."""
        self._fail(
            "the job has ended before a checkpoint had it: see what it goes on from, and send it"
            " again"
        )

    def refuse(self, future: Answer, why: str) -> None:
        """Nothing was done."""
        _settle(
            future,
            CoordinatorError(
                f"The coordinator of {self._operator!r} has not done it: {why.removesuffix('.')}."
            ),
        )

    def _fail(self, why: str) -> None:
        for one in self._open:
            self.refuse(one.future, why)
        self._open = []


def _settle(future: Answer, result: CoordinatorAnswer | CoordinatorError) -> None:
    try:
        if isinstance(result, CoordinatorAnswer):
            future.set_result(result)
        else:
            future.set_exception(result)
    except InvalidStateError:
        # The asker gave up waiting and cancelled the future.
        return
