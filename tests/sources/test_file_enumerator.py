"""``FileEnumerator`` alone: which files it finds, who gets them, what it keeps (P41)."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.core.types import OperatorId, Payload
from weir.errors import PipelineError
from weir.json_values import read_back
from weir.sources import FileSource, SplitSerializer
from weir.sources.file_enumerator import FileEnumerator
from weir.sources.file_listing import FileSplit, FoundFile
from weir.sources.known_files import KnownFiles


class FakeContext:
    """A ``SplitEnumeratorContext`` whose work waits until the test runs it."""

    operator_id: OperatorId = "in"

    def __init__(self, parallelism: int, *, available_now: bool = False) -> None:
        self.current_parallelism = parallelism
        self.available_now = available_now
        self.sent: list[tuple[int, Payload]] = []
        self.failures: list[str] = []
        self.queue: list[Callable[[], None]] = []
        self.timers: list[tuple[int, Callable[[], None]]] = []

    @property
    def registered_readers(self) -> frozenset[int]:
        return frozenset(range(self.current_parallelism))

    def assign_splits(self, splits: Sequence[Any], subtask: int) -> None:
        assert subtask in self.registered_readers
        self.sent.append((subtask, {"splits": [split.split_id for split in splits]}))

    def signal_no_more_splits(self, subtask: int) -> None:
        told = dict(self.sent)
        told[subtask] = told.get(subtask, {}) | {"end": True}
        self.sent = list(told.items())

    def send_event_to_reader(self, subtask: int, event: Payload) -> None:
        raise AssertionError(f"{event} for reader {subtask}")

    def fail_job(self, message: str) -> None:
        self.failures.append(message)

    def run_in_coordinator(self, function: Callable[[], None]) -> None:
        self.queue.append(function)

    def call_async(
        self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]
    ) -> None:
        def run() -> None:
            try:
                result, error = work(), None
            except OSError as raised:
                result, error = None, raised
            then(result, error)

        self.queue.append(run)

    def schedule(self, delay_ms: int, function: Callable[[], None]) -> None:
        self.timers.append((delay_ms, function))

    def run(self) -> list[tuple[int, Payload]]:
        """Run the waiting work; return what was sent since the last call."""
        while self.queue:
            self.queue.pop(0)()
        sent, self.sent = self.sent, []
        return sent

    def look_again(self) -> list[tuple[int, Payload]]:
        """Let the interval pass and run what follows."""
        timers, self.timers = self.timers, []
        for _, function in timers:
            function()
        return self.run()


class Bench:
    """An enumerator over a directory, across restores."""

    def __init__(
        self, directory: Path, parallelism: int = 2, *, available_now: bool = False, **options: Any
    ) -> None:
        self.directory = directory
        self._available_now = available_now
        self._source = FileSource(str(directory), format="csv", schema="id long", **options)
        self.enumerator: FileEnumerator
        self.context: FakeContext
        self.restore(None, parallelism)

    def restore(self, state: Payload | None, parallelism: int = 2) -> None:
        """Restore the enumerator in another driver."""
        self._source = pickle.loads(pickle.dumps(self._source))
        self.fail_over(state, parallelism)

    def fail_over(self, state: Payload | None, parallelism: int = 2) -> None:
        """Restore the enumerator in the same driver."""
        self.context = FakeContext(parallelism, available_now=self._available_now)
        if state is None:
            self.enumerator = self._source.create_enumerator(self.context)
        else:
            self.enumerator = self._source.restore_enumerator(self.context, state)
        self.enumerator.start()

    def split_serializer(self) -> SplitSerializer[FileSplit]:
        return self._source.split_serializer()

    def land(self, *names: str, size: int = 10, at: int = 0) -> None:
        """Create files; ``at`` is their modification time in seconds."""
        for name in names:
            (self.directory / name).write_bytes(b"x" * size)
            os.utime(self.directory / name, (1_700_000_000 + at,) * 2)

    def remove(self, *names: str) -> None:
        for name in names:
            (self.directory / name).unlink()

    def look(self) -> list[str]:
        """Look again and assign everything that may be assigned; return the names."""
        sent, found = self.context.look_again(), list[str]()
        while sent := sent or self.ask(0):
            found += [name for _, event in sent for name in event.get("splits", ())]
            sent = []
        return found

    def rejects(self) -> list[str]:
        return [one["file"] for one in self.state()["rejects"]]

    def ask(self, *subtasks: int) -> list[tuple[int, Payload]]:
        for subtask in subtasks:
            self.enumerator.handle_split_request(subtask)
        return self.context.run()

    def state(self) -> Payload:
        """The state as a checkpoint stores it."""
        state: Payload = read_back(self.enumerator.snapshot_state(7))
        return state


def splits(*names: str, end: bool = False) -> Payload:
    return {"splits": list(names)} | ({"end": True} if end else {})


def test_readers_that_ask_share_what_is_there(tmp_path: Path) -> None:
    """Files of the same age come in the order of their names; hidden files and directories are
    skipped."""
    bench = Bench(tmp_path)
    bench.land("b", "a", "c", "d", ".hidden", "_temporary")
    (tmp_path / "folder").mkdir()
    assert bench.context.run() == []
    assert bench.ask(0, 1) == [(0, splits("a", "b")), (1, splits("c", "d"))]
    assert bench.ask(0, 1) == []


def test_older_files_come_first(tmp_path: Path) -> None:
    """Whatever their names are."""
    bench = Bench(tmp_path, parallelism=1)
    bench.land("new", "old")
    os.utime(tmp_path / "old", (1_600_000_000,) * 2)
    bench.context.run()
    assert bench.ask(0) == [(0, splits("old", "new"))]


def test_an_assignment_has_no_more_bytes_than_requested_but_one_file_at_least(
    tmp_path: Path,
) -> None:
    """Files are never split."""
    bench = Bench(tmp_path, parallelism=1, max_bytes_per_split_batch=25)
    bench.land("a", "b", "c")
    bench.land("d", size=100)
    bench.context.run()
    assert bench.ask(0) == [(0, splits("a", "b"))]
    assert bench.ask(0) == [(0, splits("c"))]
    assert bench.ask(0) == [(0, splits("d"))]


def test_one_that_asks_twice_waits_once_and_is_served_when_files_come(tmp_path: Path) -> None:
    """Every process that takes over a subtask asks (P41)."""
    bench = Bench(tmp_path)
    bench.context.run()
    assert bench.ask(1, 1) == []
    bench.land("a")
    assert bench.context.look_again() == [(1, splits("a"))]
    bench.land("b")
    assert bench.context.look_again() == []


def test_a_restored_enumerator_assigns_what_was_not_assigned_and_nothing_twice(
    tmp_path: Path,
) -> None:
    """Waiting readers are forgotten: all ask again."""
    bench = Bench(tmp_path, max_bytes_per_split_batch=1)
    bench.land("a", "b", "c")
    bench.context.run()
    assert bench.ask(0) == [(0, splits("a"))]
    state = bench.state()
    assert bench.ask(1) == [(1, splits("b"))]
    bench.restore(state, parallelism=1)
    assert bench.context.run() == []
    assert bench.ask(0) == [(0, splits("b"))]
    assert bench.ask(0) == [(0, splits("c"))]
    assert bench.state()["assigned"] == ["a", "b", "c"]


def test_files_whose_assignment_is_lost_are_assigned_again_first(tmp_path: Path) -> None:
    """And are not known as assigned meanwhile."""
    bench = Bench(tmp_path, parallelism=1, max_bytes_per_split_batch=1)
    bench.land("a", "b")
    bench.context.run()
    assert bench.ask(0) == [(0, splits("a"))]
    bench.enumerator.add_splits_back([FileSplit("a", 10, 1_700_000_000 * 10**9)], 0)
    assert bench.state()["assigned"] == []
    assert bench.ask(0) == [(0, splits("a"))]
    assert bench.look() == ["b"]


def test_a_bounded_input_is_what_the_first_look_finds(tmp_path: Path) -> None:
    """The end comes with the last files; later files are not part of it, also after a restore."""
    bench = Bench(tmp_path, bounded=True, max_bytes_per_split_batch=1)
    bench.land("a", "b", "c")
    bench.context.run()
    bench.land("d")
    assert bench.ask(0, 1) == [(0, splits("a")), (1, splits("b"))]
    assert bench.context.timers == []
    state = bench.state()
    for _ in range(2):
        assert bench.ask(0, 1) == [(0, splits("c", end=True)), (1, {"end": True})]
        bench.restore(state)
        assert bench.context.run() == []


def test_an_empty_bounded_input_ends_at_once_but_not_before_it_was_looked_at(
    tmp_path: Path,
) -> None:
    """A reader may be faster than the first look."""
    bench = Bench(tmp_path, parallelism=1, bounded=True)
    look = bench.context.queue.pop()
    assert bench.ask(0) == []
    bench.context.queue.append(look)
    assert bench.context.run() == [(0, {"end": True})]


def test_a_file_that_was_removed_before_it_was_assigned_is_forgotten(tmp_path: Path) -> None:
    """The newest listing counts."""
    bench = Bench(tmp_path, parallelism=1)
    bench.land("a", "b")
    bench.context.run()
    (tmp_path / "a").unlink()
    bench.context.look_again()
    assert bench.ask(0) == [(0, splits("b"))]


def forgetful(directory: Path, **options: Any) -> Bench:
    """An enumerator that has read and forgotten ``a``.

    It keeps the names of removed files for 100 seconds.
    """
    bench = Bench(directory, parallelism=1, name_retention=100, **options)
    bench.context.run()
    bench.land("a", "still there")
    assert bench.look() == ["a", "still there"]
    bench.remove("a")
    bench.land("b", at=50)
    assert bench.look() == ["b"]
    bench.land("c", at=151)
    assert bench.look() == ["c"]
    return bench


def test_what_is_kept_of_names_is_bounded_by_what_is_there_and_was_removed_of_late(
    tmp_path: Path,
) -> None:
    """Every file is read once, across restores too."""
    bench = Bench(tmp_path, parallelism=1, name_retention=100)
    bench.context.run()
    bench.land("always there")
    read = []
    for number in range(100):
        bench.land(f"file-{number}", at=10 * number)
        read += bench.look()
        if number % 3 == 0:
            bench.restore(bench.state(), parallelism=1)
            bench.context.run()
        if number:
            bench.remove(f"file-{number - 1}")
    state = bench.state()
    assert read == ["always there", *(f"file-{number}" for number in range(100))]
    assert state["assigned"] == ["always there", "file-98", "file-99"]
    assert len(state["removed"]) == 11


def test_a_name_is_kept_while_its_file_is_there_and_beyond(tmp_path: Path) -> None:
    """However old the file; one that reappears unchanged within the retention is not read again."""
    bench = Bench(tmp_path, parallelism=1, name_retention=100)
    bench.context.run()
    bench.land("old", at=-1_000_000)
    bench.land("goes")
    assert bench.look() == ["old", "goes"]
    bench.remove("goes")
    bench.land("new", at=90)
    assert bench.look() == ["new"]
    bench.land("goes")
    bench.land("newer", at=1_000)
    assert bench.look() == ["newer"]
    assert bench.state()["assigned"] == ["old", "new", "goes", "newer"]
    assert bench.rejects() == []


def test_a_late_file_is_read_where_no_name_was_forgotten(tmp_path: Path) -> None:
    """Its time may be long ago, and equal to others."""
    bench = Bench(tmp_path, parallelism=1, name_retention=100)
    bench.context.run()
    bench.land("a", at=1_000)
    assert bench.look() == ["a"]
    bench.land("late", at=0)
    bench.land("equal", at=1_000)
    assert bench.look() == ["late", "equal"]


@pytest.mark.parametrize("late", ["a", "never seen"])
def test_a_file_that_may_have_been_read_and_forgotten_fails_the_job_by_name(
    tmp_path: Path, late: str
) -> None:
    """Reading it could duplicate rows, skipping it could lose them; one younger than the forgotten
    ones is read."""
    bench = forgetful(tmp_path)
    bench.land("no doubt", at=51)
    assert bench.look() == ["no doubt"]
    bench.land(late, at=50)
    assert bench.look() == []
    (failure,) = bench.context.failures
    assert failure.startswith(f"{late} in {tmp_path}: the file may have been read already")
    assert "copy it in again with another name and a new modification time" in failure
    assert bench.context.timers == []


def test_a_file_that_may_have_been_read_and_forgotten_is_rejected_once_by_choice(
    tmp_path: Path,
) -> None:
    """It is remembered from then on."""
    bench = forgetful(tmp_path, on_error="reject")
    bench.land("a")
    assert bench.look() == []
    bench.restore(bench.state(), parallelism=1)
    bench.context.run()
    assert bench.look() == []
    assert bench.rejects() == ["a"]
    assert bench.context.failures == []


def test_a_removed_name_that_is_used_again_is_reported(tmp_path: Path) -> None:
    """Otherwise the file would be lost silently."""
    bench = Bench(tmp_path, parallelism=1, name_retention=100, on_error="reject")
    bench.context.run()
    bench.land("a", "b")
    bench.look()
    bench.remove("a")
    bench.look()
    bench.land("a", at=1)
    assert bench.look() == []
    assert bench.rejects() == ["a"]


def test_a_look_that_finds_nothing_forgets_nothing(tmp_path: Path) -> None:
    """The directory may not be mounted."""
    bench = Bench(tmp_path, parallelism=1, name_retention=100)
    bench.context.run()
    bench.land("a", "b")
    bench.look()
    bench.remove("a", "b")
    assert bench.look() == []
    assert bench.state()["assigned"] == ["a", "b"]


def test_a_file_that_waits_to_be_assigned_is_not_doubtful(tmp_path: Path) -> None:
    """Even if names as old as it are forgotten meanwhile."""
    bench = Bench(tmp_path, parallelism=1, name_retention=100, max_bytes_per_split_batch=1)
    bench.context.run()
    bench.land("a", at=-1)
    bench.context.look_again()
    assert bench.ask(0) == [(0, splits("a"))]
    bench.land("waits")
    bench.context.look_again()
    bench.remove("a")
    bench.land("b", at=10)
    bench.context.look_again()
    bench.land("c", at=200)
    bench.context.look_again()
    assert bench.state()["forgotten_ns"] == (1_700_000_000 + 10) * 10**9
    bench.restore(bench.state(), parallelism=1)
    bench.context.run()
    assert bench.look() == ["waits", "b", "c"]


def test_a_file_that_comes_while_no_driver_runs_is_read_though_it_is_a_little_older(
    tmp_path: Path,
) -> None:
    """The look that expires names still knows them."""
    bench = Bench(tmp_path, parallelism=1, name_retention=100)
    bench.context.run()
    bench.land("a", "b", at=10)
    bench.look()
    bench.remove("a")
    bench.look()
    bench.land("little older", at=9)
    bench.land("c", at=500)
    bench.restore(bench.state(), parallelism=1)
    bench.context.run()
    assert bench.look() == ["little older", "c"]
    assert bench.state()["removed"] == {}


#: Which of a few files appears or disappears, and a time.
STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), min_size=4, max_size=30)


@given(STEPS)
@settings(max_examples=500)
def test_no_file_is_read_twice_and_none_is_lost_without_a_word(
    steps: list[tuple[int, int]],
) -> None:
    """Files appear with any times, disappear and come back unchanged; a restore precedes each
    look."""
    known = KnownFiles({}, retention_ns=3)
    times, there = dict[str, int](), set[str]()
    read, said = set[str](), set[str]()
    for number, (which, at) in enumerate(steps):
        times.setdefault(f"file-{which}", at)
        there ^= {f"file-{which}"}
        times[f"new-{number}"] = at if which else number
        there |= {f"new-{number}"}
        there -= {f"new-{number - 2}"}
        look = known.look([FoundFile(name, 1, times[name]) for name in sorted(there)], ())
        assert not {file.name for file in look.new} & read
        assert look.changed == []
        read |= {file.name for file in look.new}
        said |= {file.name for file in look.doubtful}
        assert there <= read | said
        known.add((*look.new, *look.doubtful))
        known = KnownFiles(read_back(known.dump()), retention_ns=3)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=30))
def test_every_change_of_a_file_that_was_read_is_said_once(steps: list[tuple[int, int]]) -> None:
    """Files are written, overwritten and removed; a restore precedes each look."""
    known = KnownFiles({}, retention_ns=1_000)
    there, seen = dict[str, FoundFile](), dict[str, FoundFile]()
    for number, (which, what) in enumerate(steps):
        name = f"file-{which}"
        if what == 0:
            there.pop(name, None)
        elif what == 1:
            there[name] = FoundFile(name, number, number)
        look = known.look([*there.values(), FoundFile("always there", 0, 0)], ())
        changed = {file.name for file in look.changed + look.doubtful}
        assert changed == {name for name in there if seen.get(name, there[name]) != there[name]}
        seen |= there
        known.add((*look.new, *look.doubtful))
        known = KnownFiles(read_back(known.dump()), retention_ns=1_000)


def test_a_file_that_a_restored_job_no_longer_finds_is_reported(tmp_path: Path) -> None:
    """It was read by an undone attempt, or was waiting; what the checkpoint contains was read for
    good."""
    bench = Bench(tmp_path, parallelism=1, max_bytes_per_split_batch=1)
    bench.context.run()
    bench.land("in the checkpoint", at=0)
    bench.land("waits", at=2)
    bench.context.look_again()
    assert bench.ask(0) == [(0, splits("in the checkpoint"))]
    state = bench.state()
    bench.land("read since", "read since, and there", at=1)
    assert bench.look() == ["read since", "read since, and there", "waits"]
    bench.remove("in the checkpoint", "read since", "waits")
    bench.enumerator.close()
    bench.fail_over(state, parallelism=1)
    bench.context.run()
    assert bench.look() == ["read since, and there"]
    assert bench.rejects() == ["read since", "waits"]
    for undone in (state, bench.state()):
        bench.enumerator.close()
        bench.fail_over(undone, parallelism=1)
        bench.context.run()
        assert bench.rejects() == ["read since", "waits"], (
            "said again if no checkpoint has it, else not"
        )
    assert (
        "is in no completed checkpoint, and has been removed" in bench.state()["rejects"][0]["why"]
    )
    bench.land("read since", at=1)
    assert bench.look() == ["read since"]


def test_a_file_that_waited_and_is_gone_when_another_driver_starts_is_reported(
    tmp_path: Path,
) -> None:
    """The checkpoint names it."""
    bench = Bench(tmp_path, parallelism=1)
    bench.land("a", "b")
    bench.context.run()
    bench.remove("a")
    bench.restore(bench.state(), parallelism=1)
    bench.context.run()
    assert bench.rejects() == ["a"]


@pytest.mark.parametrize("on_error", ["fail", "reject"])
def test_what_is_not_read_is_rejected_once_and_fails_no_job(tmp_path: Path, on_error: str) -> None:
    """Directories, and links that lead nowhere; also after a restore. Hidden names are meant to be
    ignored."""
    (tmp_path / "dt=2026-03-01").mkdir()
    (tmp_path / "_temporary").mkdir()
    (tmp_path / "nowhere").symlink_to("gone")
    bench = Bench(tmp_path, parallelism=1, on_error=on_error)
    bench.context.run()
    bench.land("a", "b._COPYING_")
    assert bench.look() == ["a"]
    bench.restore(bench.state(), parallelism=1)
    bench.context.run()
    (tmp_path / "later").mkdir()
    assert bench.look() == []
    why = {one["file"]: one["why"] for one in bench.state()["rejects"]}
    assert list(why) == ["dt=2026-03-01", "nowhere", "later"]
    assert "FileSource(recursive=True)" in why["later"]
    assert "it is not a file" in why["nowhere"]
    assert bench.state()["rejected"] == 3
    assert bench.context.failures == []


@pytest.mark.parametrize("on_error", ["fail", "reject"])
def test_a_file_that_is_overwritten_is_rejected_once_each_time(
    tmp_path: Path, on_error: str
) -> None:
    """It is not read again; the job goes on."""
    bench = Bench(tmp_path, parallelism=1, on_error=on_error)
    bench.context.run()
    bench.land("a", "b")
    assert bench.look() == ["a", "b"]
    bench.land("a", at=1)
    for _ in range(2):
        assert bench.look() == []
        assert bench.rejects() == ["a"]
        bench.restore(bench.state(), parallelism=1)
        bench.context.run()
    bench.land("a", size=11, at=1)
    assert bench.look() == []
    assert bench.rejects() == ["a", "a"]
    assert "changed after it was assigned" in bench.state()["rejects"][-1]["why"]
    assert bench.context.failures == []


def test_a_file_that_is_still_being_written_is_rejected_once(tmp_path: Path) -> None:
    """Until it rests."""
    bench = Bench(tmp_path, parallelism=1)
    bench.context.run()
    bench.land("a")
    assert bench.look() == ["a"]
    for size in (20, 30, 40, 40):
        bench.land("a", size=size)
        assert bench.look() == []
    assert bench.rejects() == ["a"]
    bench.land("a", size=50)
    assert bench.look() == []
    assert bench.rejects() == ["a", "a"]


def test_a_file_that_changes_before_it_is_assigned_is_not_reported(tmp_path: Path) -> None:
    """The newest listing counts."""
    bench = Bench(tmp_path, parallelism=1)
    bench.land("a")
    bench.context.run()
    bench.land("a", at=1)
    assert bench.look() == ["a"]
    assert bench.look() == bench.rejects() == []


def test_a_name_that_was_removed_and_is_used_for_another_file_is_doubtful(tmp_path: Path) -> None:
    """However old the file is."""
    bench = Bench(tmp_path, parallelism=1, on_error="reject")
    bench.context.run()
    bench.land("a", "b")
    assert bench.look() == ["a", "b"]
    bench.remove("a")
    assert bench.look() == []
    bench.land("a", at=-1)
    assert bench.look() == []
    assert bench.rejects() == ["a"]


def test_the_files_of_directories_are_read_by_choice(tmp_path: Path) -> None:
    """By their paths, oldest first; hidden directories are not read, and links to others are
    named."""
    for folder in ("dt=1/hour=2", "_year=3", "_temporary", ".hidden", "deep/er"):
        (tmp_path / folder).mkdir(parents=True)
    bench = Bench(tmp_path, parallelism=1, recursive=True)
    bench.land("top", "dt=1/hour=2/a", "_temporary/no", ".hidden/no", "deep/er/_no")
    bench.land("_year=3/b", at=-1)
    (tmp_path / "loop").symlink_to(tmp_path)
    bench.context.run()
    assert bench.ask(0) == [(0, splits("_year=3/b", "dt=1/hour=2/a", "top"))]
    assert bench.rejects() == ["loop"]
    bench.restore(bench.state(), parallelism=1)
    bench.context.run()
    bench.land("deep/er/c")
    assert bench.look() == ["deep/er/c"]
    split, serializer = FileSplit("dt=1/hour=2/a", 10), bench.split_serializer()
    assert serializer.decode(1, serializer.encode(split)) == split


@pytest.mark.parametrize("name", ["../x", "a/../x", "/x", "a//x", "a/.x", "_x", "a/_x/y", ""])
def test_no_state_leads_to_a_file_outside_of_the_directory(tmp_path: Path, name: str) -> None:
    """Nor to a hidden one."""
    with pytest.raises(ValueError, match=r"name|assigned"):
        Bench(tmp_path).restore({"assigned": [name]})


def test_a_directory_that_cannot_be_listed_fails_the_job_by_name(tmp_path: Path) -> None:
    """It does not exist."""
    bench = Bench(tmp_path / "gone")
    bench.context.run()
    (failure,) = bench.context.failures
    assert failure.startswith(
        f"the files of {tmp_path}/gone cannot be listed ([Errno 2] No such file"
    )


def test_a_file_whose_name_is_not_utf8_fails_the_job_by_name(tmp_path: Path) -> None:
    """No event and no snapshot could name it."""
    (tmp_path / os.fsdecode(b"caf\xe9.json")).write_text("{}")
    bench = Bench(tmp_path)
    bench.context.run()
    (failure,) = bench.context.failures
    assert failure.startswith(
        f"the file 'caf\\udce9.json' in {tmp_path} has a name that is not UTF-8: rename it"
    )


def test_a_file_whose_name_is_not_utf8_is_rejected_once(tmp_path: Path) -> None:
    """The others are read; it is remembered as text."""
    (tmp_path / os.fsdecode(b"caf\xe9.json")).write_text("{}")
    (tmp_path / "a").write_text("{}")
    bench = Bench(tmp_path, on_error="reject")
    bench.context.run()
    bench.context.look_again()
    assert bench.ask(0) == [(0, splits("a"))]
    bench.restore(bench.state())
    bench.context.run()
    told = {"rejected": 1, "rejects": [{"file": "caf\\udce9.json", "why": "its name is not UTF-8"}]}
    assert bench.enumerator.handle_request({"rejects": True}) == told
    assert bench.context.failures == []


def test_rejects_are_kept_and_shown_on_request(tmp_path: Path) -> None:
    """They are part of the state; any other request is refused."""
    bench = Bench(tmp_path)
    rows = [{"line": 3, "why": "bad"}, {"line": 5, "why": "worse"}]
    bench.enumerator.handle_source_event(0, {"rejected": "a", "why": "broken"})
    bench.enumerator.handle_source_event(1, {"rejected": "b", "rows": rows})
    bench.restore(bench.state())
    listed = [{"file": "a", "why": "broken"}, *({"file": "b", **row} for row in rows)]
    assert bench.enumerator.handle_request({"rejects": True}) == {"rejected": 3, "rejects": listed}
    with pytest.raises(
        ValueError, match=r'is not a request that a file source supports: send \{"rejects": true\}'
    ):
        bench.enumerator.handle_request({"reject": True})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"path": "abfs://c/x"}, "cannot read 'abfs://c/x', which only Spark's client reaches"),
        ({"format": "orc"}, "format='orc': choose one of parquet, json, csv, ipc"),
        ({"on_error": "skip"}, "on_error='skip': choose one of fail, reject"),
        ({"schema": " "}, "needs a schema"),
        ({"discovery_interval": 0}, "discovery_interval=0: set it to a number above 0"),
        ({"name_retention": 0}, "name_retention=0: set it to a number above 0"),
        ({"max_bytes_per_split_batch": -1}, "max_bytes_per_split_batch=-1"),
    ],
)
def test_what_a_file_source_cannot_be_given_is_refused_in_one_sentence(
    wrong: dict[str, Any], message: str
) -> None:
    """When the source is created."""
    given: dict[str, Any] = {"path": "in", "format": "csv", "schema": "id long"} | wrong
    with pytest.raises(PipelineError, match=message):
        FileSource(given.pop("path"), **given)


# -- what is available now


def test_what_is_available_now_is_listed_once_in_each_attempt(tmp_path: Path) -> None:
    """Then readers get the end; what comes later waits for the next run."""
    bench = Bench(tmp_path, parallelism=1, available_now=True)
    bench.land("a", "b")
    assert bench.ask(0) == [(0, {"splits": ["a", "b"], "end": True})]
    bench.land("c", at=1)
    assert bench.ask(0) == [(0, {"end": True})]
    assert bench.context.timers == []
    bench.restore(bench.state(), parallelism=1)
    assert bench.ask(0) == [(0, {"splits": ["c"], "end": True})]


def test_an_empty_directory_has_nothing_available_now(tmp_path: Path) -> None:
    """The first run of a scheduler may come before the first file."""
    bench = Bench(tmp_path, parallelism=2, available_now=True)
    assert bench.ask(0, 1) == [(0, {"end": True}), (1, {"end": True})]
    bench.land("a")
    bench.restore(bench.state(), parallelism=1)
    assert bench.ask(0) == [(0, {"splits": ["a"], "end": True})]


def test_no_end_is_signalled_before_the_listing_of_the_attempt(tmp_path: Path) -> None:
    """The listing of the attempt before says nothing about what is there now."""
    bench = Bench(tmp_path, parallelism=1, available_now=True)
    bench.ask(0)
    bench.land("a")
    bench.restore(bench.state(), parallelism=1)
    bench.enumerator.handle_split_request(0)
    waits = bench.context.queue.pop(0)
    assert bench.context.run() == []
    bench.context.queue.append(waits)
    assert bench.context.run() == [(0, {"splits": ["a"], "end": True})]
