"""Full and broken disks: each disk call of checkpoints, commits and a savepoint fails once (P23).

The calls fail in a library that is compiled here (``disk_faults.c``) and preloaded into a separate
process; ``faulty_job.py`` describes the jobs that run there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from tests.kit.disk import quick_directory

ROOT = Path(__file__).resolve().parent.parent.parent
#: How many times in a row a call fails before the disk is mended.
FOR_GOOD = 1_000_000


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that lets calls fail."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("there is no C compiler here to make a library that lets disk calls fail")
    made = tmp_path_factory.mktemp("library") / "disk_faults.so"
    source = Path(__file__).with_name("disk_faults.c")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", made, source, "-ldl"],
        check=True,
    )
    return made


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """The jobs' directory."""
    with quick_directory(tmp_path) as made:
        yield made


def slow(sweep: str) -> ParameterSet:
    """A case left to ``make test-slow``."""
    return pytest.param(sweep, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "sweep",
    [
        # The operation, its error, how many times in a row it fails, and the stride between failing
        # calls.
        "fsync EIO 1 29",
        slow("write ENOSPC 1 1"),
        slow("write EIO 1 1"),
        slow(f"write ENOSPC {FOR_GOOD} 1"),
        slow("open ENOSPC 1 1"),
        slow(f"open ENOSPC {FOR_GOOD} 1"),
        slow("rename EIO 1 1"),
        slow(f"rename ENOSPC {FOR_GOOD} 1"),
        slow("link EIO 1 1"),
        slow(f"link ENOSPC {FOR_GOOD} 1"),
        slow("mkdir ENOSPC 1 1"),
        slow(f"mkdir EIO {FOR_GOOD} 1"),
        slow("fsync EIO 1 1"),
        slow(f"fsync ENOSPC {FOR_GOOD} 1"),
    ],
)
def test_whichever_disk_call_fails_no_completed_checkpoint_is_harmed_and_the_job_continues(
    library: Path, disk: Path, sweep: str
) -> None:
    """The next checkpoint completes once the disk is mended, with each of its rows once in every
    table, also after a crash."""
    swept = subprocess.run(
        [sys.executable, "-m", "tests.durable.faulty_job", str(library), str(disk), *sweep.split()],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert swept.returncode == 0, swept.stderr[-10_000:]
    calls, failed = (int(word) for word in swept.stdout.split()[-2:])
    assert calls >= 9, "the library is not in the way of the disk"
    assert failed >= 1
