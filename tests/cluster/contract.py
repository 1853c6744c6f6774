"""What ``tests/storage/test_contract.py`` asks of every file system, and more, for real ones.

A module of tests imports all of it, and has a fixture ``files``.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.storage.test_contract import *  # noqa: F403 - its tests are run here
from tests.storage.test_contract import Files

from weir.storage.filesystem import CreateResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DRIVERS = 8


@contextmanager
def own_session(conf: dict[str, str]) -> Iterator[SparkSession]:
    """A session with these settings, in a JVM of its own."""
    from weir.spark.session.start import create_session, end_with_jvm

    session = create_session(
        name="tests",
        master="local[1]",
        conf=conf,
        parallelism=1,
        fast_working_directory=True,
        log_file=None,
    )
    yield session
    end_with_jvm(session)


def test_of_drivers_that_create_one_name_at_once_one_wins(files: Files) -> None:
    """And the file has all of the winner's content; nothing else is left (PROTOCOL P17)."""
    with ThreadPoolExecutor(_DRIVERS) as drivers:
        for number in range(10):
            path = f"{files.base}/{number}"
            tries = [
                drivers.submit(files.fs.create, path, f"{driver}".encode() * 1000)
                for driver in range(_DRIVERS)
            ]
            won = [one for one, each in enumerate(tries) if each.result() is CreateResult.CREATED]
            assert [f"{driver}".encode() * 1000 for driver in won] == [files.fs.read(path)]
    assert files.names() == [str(number) for number in range(10)]
