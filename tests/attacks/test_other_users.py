"""What other users of the machine can see of a job: nothing of its state."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from weir.config import Configuration
from weir.spark.session.start import LazySession, make_working_directory
from weir.storage.local import LocalFileSystem


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """The usual umask, which lets everybody read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize(("private", "mode"), [(True, 0o700), (False, 0o755)])
def test_the_working_directory_has_the_same_state_and_is_closed_too(
    tmp_path: Path, private: bool, mode: int
) -> None:
    """Only the job's own directory: its parents may be shared with other jobs and users."""
    working = tmp_path / "work" / "job"
    make_working_directory(LocalFileSystem(), str(working), private=private)
    assert working.stat().st_mode & 0o777 == mode
    assert working.parent.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("master", "conf", "is_local"),
    [
        (None, {}, True),
        ("local[2]", {"spark.master": "yarn"}, True),
        (None, {"spark.master": "local"}, True),
        (None, {"spark.master": "yarn"}, False),
        ("spark://master:7077", {}, False),
        ("local-cluster[2,1,1024]", {}, False),
    ],
)
def test_executors_that_may_be_other_users_are_known(
    master: str | None, conf: dict[str, str], is_local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For those, the working directory has to stay open."""
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    assert LazySession("orders", master, Configuration(conf)).is_local is is_local
