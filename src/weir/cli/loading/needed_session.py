"""The session of a file that needs Spark while it is executed (``spark/session/on_demand.py``)."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from weir.cli.loading.program import Program
from weir.config import SPARK_PREFIX, Configuration
from weir.config.options import CLASS_ARCHIVE, FAST_WORKING_DIRECTORY, WORKING_DIR
from weir.spark.session.on_demand import SessionOnDemand

if TYPE_CHECKING:
    from weir.spark.session.start import LazySession

#: The keys that a session needs, besides Spark's.
_KEYS = (CLASS_ARCHIVE.key, FAST_WORKING_DIRECTORY.key, WORKING_DIR.key)


def needed_session(
    program: Program,
    *,
    conf: Mapping[str, object],
    say: Callable[[str], None],
    name: str | None = None,
    master: str | None = None,
) -> SessionOnDemand:
    """The session that the program may need. ``say`` gets a line when it is made."""

    def lazy() -> LazySession:
        # Not at the top: most files need no session.
        from weir.spark.kafka.code import artifacts_in
        from weir.spark.kafka.connector import provide
        from weir.spark.session.start import LazySession

        given = {
            key: value
            for key, value in conf.items()
            if key.startswith(SPARK_PREFIX) or key in _KEYS
        }
        made = LazySession(name or program.path.stem, master, Configuration.load(None, given))
        provide(made, artifacts_in(program.path), say)
        return made

    def asked(frame: FrameType) -> str:
        place = program.place(frame)
        say(f"starting Spark, which {place} needs ...")
        return place

    return SessionOnDemand(lazy, asked)


@contextmanager
def session_beside(program: Program) -> Iterator[None]:
    """The session that the program may need where no job runs: its log is thrown away."""
    with tempfile.TemporaryDirectory(prefix="weir-") as directory:
        conf = {WORKING_DIR.key: directory}
        with needed_session(program, conf=conf, say=lambda line: print(line, file=sys.stderr)):
            yield
