"""Runs the job of some shapes in a process of its own, which dies after its Nth checkpoint.

adopted_driver.py DIRECTORY NTH SHAPE...
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path

from tests.kit.adopted import adopted
from tests.kit.killing_driver import POINTS
from tests.kit.live_job import LiveJob, settings
from tests.kit.place import Place

from weir.spark.session.start import create_session


def main(directory: str, nth: str, *shapes: str) -> None:
    """Run until the checkpoint is on record, and die by SIGKILL."""
    place = Place(Path(directory))
    session = create_session(
        name="script",
        master="local[2]",
        conf={"spark.sql.session.timeZone": "UTC"},
        parallelism=2,
        fast_working_directory=True,
        log_file=None,
    )
    passed = itertools.count(1)

    def reached() -> None:
        if next(passed) == int(nth):
            os.kill(os.getpid(), signal.SIGKILL)

    POINTS["after-the-record"](reached)
    conf = settings(place, interval="300ms")
    with LiveJob(adopted(session, place, shapes).job, conf) as live:
        live.result()


if __name__ == "__main__":
    main(*sys.argv[1:])
