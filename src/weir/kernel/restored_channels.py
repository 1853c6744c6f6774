"""What the channels of a new attempt hold before any task runs.

A checkpoint has no channels, but for what an unaligned one's barrier has overtaken: segments that are state of their
consumer (PROTOCOL P27). They come first. A producer that is fully finished in the checkpoint is not started again, so its
channels end behind them. All else a restored producer puts out anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from weir.core.messages.channel import ChannelAppended, EndOfPartition, EndOfUserRecords, Segment
from weir.core.types import TaskState, VertexId
from weir.kernel.ports import TaskPlan


def restored_entries(
    plan: TaskPlan, state: TaskState | None, running: Collection[VertexId]
) -> Iterator[ChannelAppended]:
    """The first entries of a task's channels, given the tasks that run in the attempt."""
    for one in state.in_flight if state is not None else ():
        segment = Segment(position=one.position, size=one.size, payload=one.payload)
        yield ChannelAppended(vertex=plan.vertex, channel=one.channel, entries=(segment,))
    for producer in plan.inputs:
        if producer not in running:
            ends = (EndOfUserRecords(), EndOfPartition())
            yield ChannelAppended(vertex=plan.vertex, channel=producer, entries=ends)
