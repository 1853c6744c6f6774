"""One run of a sink over a simulated store, with the job's records in an object store.

Drivers run a job of numbered rows while requests fail, arrive late or lose their answers, drivers
are killed and paused, a second one starts, machines crash, and servers restart or go back to an
older state. After a while the faults cease, and the job must finish.

The laws:

1. Readers see only rows of completed checkpoints, each once (MISSION A11, PROTOCOL P18).
2. Rows whose commit has returned stay, unless the store itself has lost them. Then the job says so
   by name, and only then (P21).
3. The checkpoint that the newest record names is there (P17).
4. A driver is fenced by another's record only (P17).
5. Once ``clean`` has returned, no session is alive that an older attempt had before (P22).
6. Once a checkpoint has been flushed, the target holds its rows, shown or not (P23).
7. A job that has finished shows every row.
"""

from __future__ import annotations

import random as global_random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from random import Random
from types import SimpleNamespace
from unittest.mock import patch

import msgspec
from greenlet import GreenletExit

from weir.core.types import Committable
from weir.errors import (
    JobFencedError,
    LostRowsError,
    SinkMismatchError,
    UnsupportedEnvironmentError,
    WeirError,
)
from weir.sim.engine.disk import Disk
from weir.sim.engine.loop import Loop, Process
from weir.sim.engine.story import Story
from weir.sim.stores.bucket import Bucket, simulated_requests
from weir.sim.stores.driver import BASE_DIRECTORY, JOB_ID, StoreDriver
from weir.sim.stores.faults import Network, Rates
from weir.sim.stores.frame import simulated_footers
from weir.sim.stores.targets import Kind, new_target
from weir.storage import checkpoints

#: Virtual seconds within which a job must finish once the faults have ceased.
_PATIENCE_S = 300
#: For how long what is left runs on after the job has finished, in virtual microseconds.
_AFTERWARDS_US = 30_000_000
#: How often a driver finds the newest checkpoint damaged.
_DAMAGED = 0.3
_LOG = f"{BASE_DIRECTORY.removeprefix('s3://bucket/')}/{JOB_ID}/log/"


@dataclass(frozen=True, kw_only=True)
class StoresResult:
    """The result of one seed."""

    seed: int
    #: None: all laws held.
    violation: str | None
    #: The sink, and the digest of all lines.
    plan: str
    digest: str
    story: tuple[str, ...]
    checkpoints: int
    #: Whether the job has ended because the store had gone back.
    noticed: bool


class _Record(msgspec.Struct):
    """What the laws read of a job's record."""

    writer: str
    completed: int | None = None
    checkpoints: list[dict[str, object]] = []


class NobodyWatches:
    """Implements ``disk.Watcher``."""

    def deleted(self, path: str) -> None:
        """See ``Watcher``."""

    def created(self, path: str, data: bytes) -> None:
        """See ``Watcher``."""


class _DiskFaults:
    """Implements ``disk.StorageFaults``: a disk that is slow, and fails without effect."""

    def __init__(self, random: Random, over: Callable[[], bool]) -> None:
        self._random = random
        self._rate = random.choice((0.0, 0.002, 0.02))
        self._over = over

    def delay_us(self) -> int:
        """See ``StorageFaults``."""
        return self._random.randrange(20, 400)

    def fails_before(self, operation: str) -> bool:
        """See ``StorageFaults``."""
        return not self._over() and self._random.random() < self._rate

    def fails_after(self, operation: str) -> bool:
        """See ``StorageFaults``."""
        return self.fails_before(operation)

    def loses_writes(self, path: str) -> bool:
        """See ``StorageFaults``."""
        return False


class StoresWorld:
    """One run: its stores, its drivers, and the laws."""

    def __init__(self, seed: int, kind: Kind | None = None) -> None:
        """Draw a run. ``kind``: the sink; None: the seed decides."""
        self.seed = seed
        random = self._random = Random(f"stores {seed}")
        # Retries of commits draw their jitter from here.
        global_random.seed(seed)
        drawn = random.choices(list(Kind), weights=[one.weight for one in Kind])[0]
        self.kind = kind or drawn
        self.loop = Loop()
        self._story = Story()
        self.network = Network(self.loop, Random(random.random()), _rates(random), self.tell)
        self.disk = Disk(NobodyWatches())
        self.disk_faults = _DiskFaults(Random(random.random()), lambda: self.network.over)
        self.bucket = Bucket(self.network, self._deleted)
        self.target = new_target(self.kind, self.network, self.disk, self.look)
        self.batches = random.randint(3, 9)
        self._sizes = [random.choice((1, 1, 3, 5)) for _ in range(self.batches)]
        self._drivers: list[StoreDriver] = []
        self._outside = Process("-")
        self._is_over = False
        self._violation: str | None = None
        self._noticed = False
        #: The store went back while no driver ran and nothing was pending.
        self._unnoticeable = False
        #: The store went back, and no commit has begun since.
        self._unseen = False
        #: By checkpoint, the position up to which it has rows.
        self._positions: dict[int, int] = {}
        #: Damaged checkpoints, none of which was shown.
        self._given_up: set[int] = set()
        #: Batches whose commit has returned.
        self._committed: set[int] = set()

    def run(self) -> StoresResult:
        """Run to the end."""
        with ExitStack() as stack:
            stack.enter_context(simulated_requests())
            stack.enter_context(simulated_footers())
            stack.enter_context(self.target.simulated())
            # Names of probes are in messages.
            names = Random(f"names {self.seed}")
            drawn = SimpleNamespace(token_hex=lambda size: names.randbytes(size).hex())
            stack.enter_context(patch.object(checkpoints, "secrets", drawn))
            self._supervise()
            for strike, mean_us in self._timed():
                self._arm(strike, mean_us)
            limit_us = self.network.until_us + _PATIENCE_S * 1_000_000
            over = self.loop.run(lambda: self._is_over or bool(self._violation), limit_us)
            if not over and self._violation is None:
                self.broken(f"the job did not finish within {_PATIENCE_S} s after the last fault")
            if self._violation is None:
                # Whoever is late must do no harm either.
                self.loop.run(lambda: bool(self._violation), self.loop.now_us + _AFTERWARDS_US)
                self._settle()
            for driver in self._drivers:
                self.loop.kill(driver.process)
                self.loop.kill(driver.executors)
            self.loop.end()
        return StoresResult(
            seed=self.seed,
            violation=self._violation,
            plan=f"{self.kind.value}, its records in an object store",
            digest=self._story.digest,
            story=tuple(self._story.lines()) if self._violation else (),
            checkpoints=len(self._positions),
            noticed=self._noticed,
        )

    # -- what drivers report

    def tell(self, what: str) -> None:
        """Add a line to the story."""
        self._story.tell(self.loop.now_us, "-", what)

    def broken(self, what: str) -> None:
        """Report a broken law; the first counts."""
        if self._violation is None:
            self.tell(f"VIOLATION {what}")
            self._violation = f"{self.kind.value}: {what}"

    def finish(self) -> None:
        """The job has finished."""
        self._is_over = True

    def rows_of(self, position: int) -> list[int]:
        """The rows of a batch."""
        return [position * 10 + row for row in range(self._sizes[position])]

    def took(self, checkpoint: int, position: int) -> None:
        """The metadata of a checkpoint was written."""
        self._positions[checkpoint] = position

    def commits(self, items: Sequence[Committable]) -> None:
        """A commit begins: with rows, it looks whether the store has gone back."""
        if items:
            self._unseen = False

    def committed(self, items: Sequence[Committable]) -> None:
        """A commit has returned: its rows must stay."""
        self._committed.update(item.position for item in items)
        self.look()

    def flushed(self, driver: StoreDriver, items: Sequence[Committable], age: int) -> None:
        """A flush has returned that began when the target had this age."""
        held = self.target.held()
        newest = max(one.attempt for one in self._drivers)
        # A newer attempt may have cleaned up.
        if held is not None and age == self.target.age and driver.attempt == newest:
            rows = [row for item in items for row in self.rows_of(item.position)]
            if lacking := [row for row in rows if row not in held]:
                self.broken(f"row {lacking[0]} was flushed, and is neither shown nor staged")
        self.look()

    def is_damaged(self, checkpoint: int, driver: StoreDriver) -> bool:
        """Whether the newest checkpoint cannot be read: one that was given up, or a drawn one.

        None is drawn while an older attempt may still commit it: its rows would be shown twice.
        """
        if checkpoint in self._given_up:
            return True
        others = any(one.is_live for one in self._drivers if one is not driver)
        if self.network.over or others or self.network.in_flight:
            return False
        return self._random.random() < _DAMAGED

    def gives_up(self, checkpoint: int) -> None:
        """A driver falls back to the checkpoint before a damaged one."""
        self.tell(f"FAULT checkpoint {checkpoint} is damaged, and given up")
        self._given_up.add(checkpoint)

    def restored(self, pending: Sequence[Committable]) -> None:
        """A driver has opened its sink; ``pending``: what it commits again."""
        self.commits(pending)
        if self.target.has_lost_rows and not pending:
            self._unnoticeable = True

    def cleaned(self, left: set[object]) -> None:
        """``clean`` has returned; ``left``: sessions that it should have ended."""
        if left:
            self.broken(f"{len(left)} sessions of dead attempts outlive clean")
        self.look()

    def look(self) -> None:
        """Compare what readers see with what they may see."""
        shown = Counter(self.target.rows())
        twice = [row for row, count in shown.items() if count > 1]
        if twice:
            self.broken(f"row {twice[0]} is visible {shown[twice[0]]} times")
        newest = self._newest()
        last = -1 if newest is None else self._positions.get(newest.completed or 0, -1)
        early = [row for row in shown if row // 10 > last]
        if early:
            self.broken(f"row {early[0]} is visible, but no checkpoint with it has completed")
        if not self.target.has_lost_rows:
            gone = [row for one in self._committed for row in self.rows_of(one) if row not in shown]
            if gone:
                self.broken(f"row {gone[0]} was committed, and is not visible")

    # -- laws

    def _settle(self) -> None:
        self.look()
        shown = set(self.target.rows())
        missing = [
            row for one in range(self.batches) for row in self.rows_of(one) if row not in shown
        ]
        unseen = self._unnoticeable or self._unseen
        if missing and not self._noticed and not unseen:
            self.broken(f"the job has finished, and row {missing[0]} is not visible")

    def _newest(self) -> _Record | None:
        """The job's newest record in the bucket."""
        entries = [key for key in self.bucket.objects if key.startswith(_LOG)]
        if not entries:
            return None
        return msgspec.json.decode(self.bucket.objects[max(entries)].data, type=_Record)

    def _deleted(self, key: str) -> None:
        newest = self._newest()
        if newest is None or not newest.checkpoints:
            return
        path = str(newest.checkpoints[-1]["path"]).removeprefix("s3://bucket/")
        if f"{path}/_metadata" not in self.bucket.objects:
            self.broken(f"checkpoint {newest.completed} is gone, and the newest record names it")

    # -- drivers and faults

    def _supervise(self) -> None:
        if not self._is_over:
            if not any(driver.is_live for driver in self._drivers):
                self._start_driver()
            self.loop.at(self._random.randrange(20_000, 80_000), self._outside, self._supervise)

    def _start_driver(self) -> None:
        driver = StoreDriver(self, len(self._drivers) + 1)
        self._drivers.append(driver)
        self.tell(f"{driver.process.name} starts")
        self.loop.spawn(driver.process, partial(self._drive, driver))

    def _drive(self, driver: StoreDriver) -> None:
        try:
            driver.run()
        except LostRowsError as error:
            self._lost(str(error))
        except (SinkMismatchError, UnsupportedEnvironmentError) as error:
            self.broken(f"{driver.process.name} fails for good: {error}")
        except JobFencedError as error:
            self.tell(f"{driver.process.name} is fenced: {error}")
            newest = self._newest()
            if newest is not None and newest.writer == driver.process.name:
                self.broken(f"{driver.process.name} was fenced by its own record")
        except WeirError as error:
            self.tell(f"{driver.process.name} fails: {error}")
        except GreenletExit:
            raise
        except Exception as error:
            what = f"{driver.process.name}: {type(error).__name__}: {error}"
            self.tell(what)
            # A newer attempt may delete what an older one uses.
            if driver.attempt == max(one.attempt for one in self._drivers):
                self.broken(what)
        driver.ended = True
        self._end_executors(driver)

    def _lost(self, said: str) -> None:
        """A driver says that committed rows are lost: the job ends, and says why."""
        if not self.target.has_gone_back:
            self.broken(f"nothing is lost, but the job says: {said}")
        self.tell(f"the job has failed: {said}")
        self._noticed = self._is_over = True

    def _end_executors(self, driver: StoreDriver) -> None:
        """Executors notice at once, or a while later, that their driver is gone."""
        delay_us = self._random.choice((0, self._random.randrange(3_000_000)))
        self.loop.at(delay_us, self._outside, partial(self.loop.kill, driver.executors))

    def _timed(self) -> list[tuple[Callable[[StoreDriver], object], float]]:
        strikes = [self._kill, self._pause, self._second, self._crash, self._strike]
        return [
            (strike, self._random.choice((40_000.0, 200_000.0, 1_000_000.0)))
            for strike in strikes
            if self._random.random() < 0.5
        ]

    def _arm(self, strike: Callable[[StoreDriver], object], mean_us: float) -> None:
        delay_us = round(self._random.expovariate(1 / mean_us))

        def due() -> None:
            live = [driver for driver in self._drivers if driver.is_live]
            if not self.network.over and not self._is_over:
                if live:
                    strike(live[-1])
                self._arm(strike, mean_us)

        self.loop.at(delay_us, self._outside, due)

    def _kill(self, driver: StoreDriver) -> None:
        self.tell(f"FAULT {driver.process.name} is killed")
        self.loop.kill(driver.process)
        self._end_executors(driver)

    def _pause(self, driver: StoreDriver) -> None:
        self.tell(f"FAULT {driver.process.name} is paused")
        most_us = self._random.choice((300_000, 15_000_000))
        driver.process.paused_until_us = self.loop.now_us + self._random.randrange(most_us)
        if self._random.random() < 0.7:
            self._start_driver()

    def _second(self, _: StoreDriver) -> None:
        self._start_driver()

    def _crash(self, _: StoreDriver) -> None:
        self.tell("FAULT the machine crashes")
        for driver in self._drivers:
            self.loop.kill(driver.process)
            self.loop.kill(driver.executors)
        self.disk.crash(self._random)

    def _strike(self, _: StoreDriver) -> None:
        self.target.strike()
        self._unseen = self.target.has_lost_rows


def _rates(random: Random) -> Rates:
    def drawn(most: float) -> float:
        return random.choice((0.0, most / 10, most))

    return Rates(
        refused=drawn(0.05),
        answer_lost=drawn(0.1),
        late=drawn(0.05),
        slow=drawn(0.05),
        others=drawn(0.3),
        until_us=round(random.uniform(0.1, 2.0) * 1e6),
    )


def run_stores(seed: int, kind: Kind | None = None) -> StoresResult:
    """Run one seed to its end. ``kind``: the sink; None: the seed decides."""
    return StoresWorld(seed, kind).run()
