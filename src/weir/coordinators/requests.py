"""``OpenRequests``: requests to one coordinator that no completed checkpoint contains yet.

An answer is a promise: it is given when the changes of the request are durable, not when they are
made. So each request waits for the first snapshot that the coordinator takes after it, and then for
the completion of that or a later checkpoint.
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
    #: The checkpoint id of the first snapshot that contains its changes; None before.
    snapshot: int | None = None


class OpenRequests:
    """The open requests of one coordinator; used only on its own thread."""

    def __init__(self, operator: OperatorId) -> None:
        self._operator = operator
        self._open: list[_Open] = []

    def handled(self, answer: Payload | None, future: Answer) -> None:
        """The coordinator has handled a request; its answer waits for a checkpoint."""
        self._open.append(_Open(answer, future))

    def snapshot(self, checkpoint_id: int) -> None:
        """The coordinator takes a snapshot, which contains all requests handled so far."""
        for request in self._open:
            request.snapshot = checkpoint_id if request.snapshot is None else request.snapshot

    def completed(self, checkpoint_id: int) -> None:
        """A checkpoint is durable: answer the requests that it contains."""
        for request in self._open:
            if request.snapshot is not None and request.snapshot <= checkpoint_id:
                _settle(
                    request.future,
                    CoordinatorAnswer(answer=request.answer, checkpoint_id=checkpoint_id),
                )
        self._open = [request for request in self._open if not request.future.done()]

    def restored(self, checkpoint_id: int | None) -> None:
        """The job was restored: answer the requests in the checkpoint, and fail the rest."""
        self.completed(checkpoint_id or 0)
        self._fail("the job was restored from a checkpoint without it: send it again")

    def end(self) -> None:
        """The driver ends: fail all open requests."""
        self._fail(
            "the job ended before a checkpoint contained it: send it again when the job runs"
        )

    def refuse(self, future: Answer, why: str) -> None:
        """Fail a request, since it was not carried out."""
        _settle(
            future,
            CoordinatorError(
                f"The coordinator of {self._operator!r} did not carry out the request:"
                f" {why.removesuffix('.')}."
            ),
        )

    def _fail(self, why: str) -> None:
        for request in self._open:
            self.refuse(request.future, why)
        self._open = []


def _settle(future: Answer, result: CoordinatorAnswer | CoordinatorError) -> None:
    try:
        if isinstance(result, CoordinatorAnswer):
            future.set_result(result)
        else:
            future.set_exception(result)
    except InvalidStateError:
        # The requester gave up and cancelled the future, or the future was settled before.
        return
