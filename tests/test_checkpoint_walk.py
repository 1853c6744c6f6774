"""``docs/CHECKPOINT.md`` is true: a traced checkpoint takes the way that the page describes."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from types import FrameType

import pytest
from tests.kit.disk import quick_directory
from tests.kit.played_job import PlayedDriver

ROOT = Path(__file__).resolve().parent.parent
SOURCES = f"{ROOT / 'src' / 'weir'}/"
ROW = re.compile(r"^\| (\d+) \| (main|pool) \| `([\w.]+)` \| `([\w/]+\.py)` \|$", re.MULTILINE)


class Tracer:
    """Notes every call of Weir's functions on threads that start while it is entered."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str]] = []
        self.armed = False

    def __enter__(self) -> Tracer:
        threading.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self.armed = False
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if self.armed and event == "call" and code.co_filename.startswith(SOURCES):
            file = code.co_filename.removeprefix(SOURCES)
            self.calls.append((code.co_qualname, file, threading.current_thread().name))


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, str]]:
    """(function, file, thread) of each call within the third checkpoint of a job, in order."""
    with quick_directory(tmp_path_factory.mktemp("walk")) as root:
        (root / "disk").mkdir()
        with Tracer() as tracer, PlayedDriver(root) as driver:
            for _ in range(2):
                assert driver.step()
                assert not isinstance(driver.complete(driver.job.trigger_checkpoint()), str)
            assert driver.step()
            tracer.armed = True
            assert not isinstance(driver.complete(driver.job.trigger_checkpoint()), str)
    return tracer.calls


def test_the_page_follows_a_checkpoint_through_the_code(
    calls: list[tuple[str, str, str]],
) -> None:
    """Each function of the page is called, in the page's order, in its file, on its thread."""
    rows = ROW.findall((ROOT / "docs" / "CHECKPOINT.md").read_text())
    assert [int(number) for number, *_ in rows] == list(range(1, 50))
    main = next(thread for name, _, thread in calls if name == "JobMaster._snapshot_requested")
    remaining = iter(calls)
    for number, thread, function, file in rows:
        for name, place, ran_on in remaining:
            if (name, place) == (function, file):
                assert (ran_on == main) is (thread == "main"), f"{number}: {function} on {ran_on}"
                break
        else:
            pytest.fail(f"{number}: {function} ({file}) is not called after the line before it")


def test_a_checkpoint_stays_within_few_files(calls: list[tuple[str, str, str]]) -> None:
    """A reader who follows one checkpoint of one query opens no more of the core than this."""
    # Four of the files only record what happens, for the web page and the log.
    core = {file for _, file, _ in calls if file.startswith(("core/", "runtime/"))}
    assert len(core) <= 38, sorted(core)
