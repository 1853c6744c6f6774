"""Counts how far a checkpoint goes: all of its calls, and those that are given its id.

The job is that of ``tests/kit/played_job.py``, which needs no JVM. Its query runs a batch only
while the job is idle, and the walk ends when the job is idle again, so every run counts the same.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from tests.kit.played_job import PlayedDriver
from tests.test_checkpoint_walk import SOURCES, Tracer

#: The checkpoint that is followed: the first two have more to create.
CHECKPOINT_ID = 3
#: Parameters that may hold a checkpoint's id. A sink calls it ``epoch``, ``n`` or ``last``.
NAMES = {"checkpoint_id", "epoch", "up_to", "n", "last"}
#: How many batches a checkpoint may need.
BATCHES = 10
#: How often to look whether the job is idle, every 0.2 s.
LOOKS = 150


class IdTracer(Tracer):
    """Also notes the files of the calls that are given the checkpoint's id.

    Calls of lambdas and comprehensions do not count: a reader does not go anywhere.
    """

    def __init__(self) -> None:
        super().__init__()
        self.hops: list[str] = []

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if code.co_name.startswith("<"):
            return
        super()._note(frame, event, argument)
        if self.armed and event == "call" and code.co_filename.startswith(SOURCES):
            parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            for name in parameters:
                value = frame.f_locals.get(name)
                if (name in NAMES and value == CHECKPOINT_ID) or (
                    name != "self" and _has_id(value)
                ):
                    self.hops.append(code.co_filename)
                    break


def _has_id(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_id, value))
    holders = (value, getattr(value, "barrier", None))
    return any(getattr(holder, "checkpoint_id", None) == CHECKPOINT_ID for holder in holders)


def report() -> Iterator[str]:
    """Follow the checkpoint."""
    tracer = IdTracer()
    with tempfile.TemporaryDirectory() as root, tracer:
        (Path(root) / "disk").mkdir()
        with PlayedDriver(Path(root)) as driver:
            tracer.armed = True
            for _ in range(CHECKPOINT_ID):
                _step(driver, tracer)
                tracer.calls.clear()
                tracer.hops.clear()
                _checkpoint(driver, tracer)
            tracer.armed = False
    calls, hops = tracer.calls, tracer.hops
    files = set(hops)
    moves = sum(file != before for before, file in zip(["", *hops], hops, strict=False))
    yield f"\na checkpoint's id: {len(hops)} hops, {len(files)} files, {moves - len(files)} returns"
    yield f"a checkpoint: {len(calls):,} calls, {len({file for _, file, _ in calls})} files"


def _checkpoint(driver: PlayedDriver, tracer: Tracer) -> None:
    completed = driver.job.trigger_checkpoint()
    _wait_until_idle(tracer)
    for _ in range(BATCHES):
        if not completed.done():
            # Its barrier comes with the planning call after a batch.
            _step(driver, tracer)
    completed.result(timeout=0)


def _step(driver: PlayedDriver, tracer: Tracer) -> None:
    if not driver.step():
        raise TimeoutError("the query is not ready for a batch")
    _wait_until_idle(tracer)


def _wait_until_idle(tracer: Tracer) -> None:
    for _ in range(LOOKS):
        before = len(tracer.calls)
        time.sleep(0.2)
        if len(tracer.calls) == before:
            return
    raise TimeoutError("the job does not become idle")
