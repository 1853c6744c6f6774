"""Virtual time: order, kills, pauses, locks and events."""

from __future__ import annotations

import contextlib
import gc
import weakref
from functools import partial

from greenlet import GreenletExit
from tests.sim.greenlets import LIMIT_US

from weir.sim.engine.loop import Loop, Process, SimEvent, SimLock, SimWorkers


def run(loop: Loop) -> None:
    """Run until nothing is due."""
    loop.run(lambda: False, LIMIT_US)


def test_what_is_due_first_runs_first() -> None:
    """Functions run in order of time, whatever the order of the calls."""
    loop, process, ran = Loop(), Process("p"), list[str]()
    loop.at(20, process, partial(ran.append, "late"))
    loop.at(10, process, partial(ran.append, "early"))
    run(loop)
    assert ran == ["early", "late"]
    assert loop.now_us == 20


def test_of_two_at_the_same_time_the_one_requested_first_runs_first() -> None:
    """The order of calls decides between equal times."""
    loop, process, ran = Loop(), Process("p"), list[int]()
    for number in range(5):
        loop.at(10, process, partial(ran.append, number))
    run(loop)
    assert ran == [0, 1, 2, 3, 4]


def test_the_time_limit_ends_a_run_before_what_comes_later() -> None:
    """A function due after the limit does not run, and the run returns False."""
    loop, process, ran = Loop(), Process("p"), list[str]()
    loop.at(10, process, partial(ran.append, "in time"))
    loop.at(30, process, partial(ran.append, "too late"))
    assert not loop.run(lambda: False, 20)
    assert ran == ["in time"]


def test_nothing_of_a_killed_process_keeps_running() -> None:
    """Neither due nor blocked functions continue; other processes do."""
    loop, killed, other, ran = Loop(), Process("killed"), Process("other"), list[str]()

    def sleeper(process: Process) -> None:
        loop.sleep(process, 100)
        ran.append(process.name)

    loop.spawn(killed, partial(sleeper, killed))
    loop.spawn(other, partial(sleeper, other))
    loop.at(50, killed, partial(ran.append, "due"))
    loop.at(20, other, partial(loop.kill, killed))
    run(loop)
    assert ran == ["other"]


def test_a_paused_process_continues_where_it_was_when_the_pause_is_over() -> None:
    """Functions that were due during the pause run after it, in order."""
    loop, process, ran = Loop(), Process("p"), list[tuple[str, int]]()
    process.paused_until_us = 1_000
    for name in ("first", "second"):
        loop.at(10, process, lambda name=name: ran.append((name, loop.now_us)))  # type: ignore[misc]
    run(loop)
    assert ran == [("first", 1_000), ("second", 1_000)]


def test_an_interrupted_task_ends_where_it_is() -> None:
    """The rest of the task never runs, and the interrupting caller continues after its end."""
    loop, process, ran = Loop(), Process("p"), list[str]()

    def long_work() -> None:
        ran.append("begun")
        loop.sleep(process, 100)
        ran.append("ended")

    task = loop.spawn(process, long_work)

    def interrupt() -> None:
        loop.sleep(process, 50)
        task.interrupt()
        ran.append("interrupted" if task.done() else "still there")

    loop.spawn(process, interrupt)
    run(loop)
    assert ran == ["begun", "interrupted"]


def test_a_lock_lets_one_in_at_a_time() -> None:
    """The second task waits, however long the first one holds the lock."""
    loop, process, ran = Loop(), Process("p"), list[str]()
    lock = SimLock(loop, process)

    def locked(name: str) -> None:
        with lock:
            ran.append(f"{name} in")
            loop.sleep(process, 100)
            ran.append(f"{name} out")

    loop.spawn(process, partial(locked, "a"))
    loop.spawn(process, partial(locked, "b"), 10)
    run(loop)
    assert ran == ["a in", "a out", "b in", "b out"]


def test_a_lock_is_free_when_its_holder_was_interrupted() -> None:
    """The waiting task gets the lock."""
    loop, process, ran = Loop(), Process("p"), list[str]()
    lock = SimLock(loop, process)

    def locked(name: str) -> None:
        with lock:
            loop.sleep(process, 100)
            ran.append(name)

    holder = loop.spawn(process, partial(locked, "holder"))
    loop.spawn(process, partial(locked, "waiting"), 10)
    loop.spawn(process, holder.interrupt, 50)
    run(loop)
    assert ran == ["waiting"]


def test_an_event_wakes_all_who_wait() -> None:
    """Both waiting tasks continue when the event is set, and ``wait`` returns True."""
    loop, process, woken = Loop(), Process("p"), list[tuple[bool, int]]()
    event = SimEvent(loop, process)
    for _ in range(2):
        loop.spawn(process, lambda: woken.append((event.wait(), loop.now_us)))
    loop.at(70, process, event.set)
    run(loop)
    assert woken == [(True, 70), (True, 70)]


def test_waiting_for_an_event_ends_with_its_timeout() -> None:
    """``wait`` returns False, and a later ``set`` does not wake the caller a second time."""
    loop, process, woken = Loop(), Process("p"), list[tuple[bool, int]]()
    event = SimEvent(loop, process)
    loop.spawn(process, lambda: woken.append((event.wait(0.001), loop.now_us)))
    loop.at(5_000, process, event.set)
    run(loop)
    assert woken == [(False, 1_000)]


def test_closing_a_pool_waits_for_what_is_under_way() -> None:
    """Work submitted earlier has ended when ``close`` returns."""
    loop, process, ran = Loop(), Process("p"), list[str]()
    workers = SimWorkers(loop, process, lambda: 10)

    def work() -> None:
        loop.sleep(process, 100)
        ran.append("work")

    workers.submit(work)

    def close() -> None:
        workers.close()
        ran.append("closed")

    loop.spawn(process, close)
    run(loop)
    assert ran == ["work", "closed"]


def test_the_end_of_a_run_frees_what_still_waits() -> None:
    """Also what waits again while it ends; Python frees no greenlet that is suspended."""
    loop, process = Loop(), Process("p")

    def stubborn() -> None:
        for _ in range(3):
            with contextlib.suppress(GreenletExit):
                loop.wait()

    waiting = [weakref.ref(loop.spawn(process, work).greenlet) for work in (loop.wait, stubborn)]
    loop.spawn(process, lambda: None, delay_us=1_000)
    loop.run(lambda: False, 10)
    loop.end()
    process.greenlets.clear()
    gc.collect()
    assert [one() for one in waiting] == [None, None]


def test_a_run_in_which_time_stands_still_ends() -> None:
    """What is due at once, again and again, would never let time pass."""
    loop, process = Loop(), Process("p")

    def spin() -> None:
        loop.at(0, process, spin)

    loop.at(1, process, spin)
    assert not loop.run(lambda: False, 1_000_000)
    assert loop.now_us == 1
