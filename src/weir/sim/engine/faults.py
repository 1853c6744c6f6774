"""The faults of one run: kinds and rates drawn from its seed, and a count of what struck when.

**Mishaps** are mistakes that people make with a job's directories and commands, and what disks do
to files: a backup restored, whole or in part, an old savepoint started again, also with other
tables, a volume that is not mounted, a damaged checkpoint or record (PROTOCOL P19, P21). A mishap
happens while no driver is alive. Either the job continues as if it were intended, or the drivers
refuse to run it, and the mishap is then undone. The tables alone decide which is right: rows that
they show and that the job would not know of must never be written again::

    ==================  ==========================  ====================================
    mishap              continues from              refused if a table has a commit
    ==================  ==========================  ====================================
    backup restored     the records of the copy     of the job, beyond the copy's record
    records restored    the records of the copy     the same; also if the checkpoints that they
                                                    name are gone
    ids restored        where it was                never
    savepoint again     that savepoint              that came after the savepoint, or by
                                                    a start from another one
    savepoint moved     that savepoint              never: it goes to other tables, empty ones
    volume not mounted  nothing                     at all
    checkpoint damaged  the checkpoint before it    of the job, beyond that checkpoint;
                                                    perhaps also if one was only begun
    record misdirected  -                           always
    ==================  ==========================  ====================================
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from weir.core.types import CompletedCheckpoint, JobId
from weir.durable.sink_port import pending_of
from weir.sim.engine.table import TableVersion
from weir.storage.job_log import JobRecord


class Fault(enum.Enum):
    """A kind of fault, or of user request."""

    STORAGE_ERROR = "storage error"
    #: A write or conditional create that took effect and still reported a failure.
    STORAGE_IN_DOUBT = "outcome in doubt"
    STORAGE_SLOW = "slow storage"
    #: A sync fails, and its writes are lost even if a later sync succeeds.
    SYNC_FAILED = "sync failed"
    TASK_FAILED = "task failed"
    #: A table rejects a commit.
    COMMIT_FAILED = "commit failed"
    #: User code in a checkpoint fails: a master hook, or an operator whose state is taken.
    DECLINED = "failed hook or operator"
    #: A master hook refuses the final checkpoint, after every task has ended its records.
    END_HOOK_FAILED = "hook failed at the end"
    #: An executor of a stopped query keeps writing.
    LATE_WRITE = "late executor"
    DRIVER_KILLED = "driver killed"
    #: The machine crashes with all drivers: unsynced writes may be lost.
    MACHINE_CRASHED = "machine crashed"
    #: SIGSTOP for a while; usually another driver takes over meanwhile.
    DRIVER_PAUSED = "driver paused"
    SECOND_DRIVER = "second driver"
    CLOCK_JUMP = "clock jump"
    CHECKPOINT_REQUESTED = "checkpoint requested"
    SAVEPOINT_REQUESTED = "savepoint requested"
    STOP_REQUESTED = "stop requested"
    #: At most once in a run, which ends with it.
    CANCEL_REQUESTED = "cancel requested"
    SUSPENDED = "suspended"
    #: A request to a simulated store, or to the object store with the records, is lost, late, or
    #: carried out without an answer.
    REQUEST_FAILED = "request without an answer"
    #: A store restarts, or goes back to an older state.
    STORE_STRUCK = "store restarted or went back"
    #: Every operation on the disk is late for a while.
    DISK_SLOW = "slow disk"


#: Faults that strike at times of their own; the others strike an operation.
TIMED = (
    Fault.DRIVER_KILLED,
    Fault.MACHINE_CRASHED,
    Fault.DRIVER_PAUSED,
    Fault.SECOND_DRIVER,
    Fault.CLOCK_JUMP,
    Fault.CHECKPOINT_REQUESTED,
    Fault.SAVEPOINT_REQUESTED,
    Fault.STOP_REQUESTED,
    Fault.SUSPENDED,
)

#: Least and most probability for each operation; a run draws its rate from this range.
_RATES: dict[Fault, tuple[float, float]] = {
    Fault.STORAGE_ERROR: (0.001, 0.02),
    Fault.STORAGE_IN_DOUBT: (0.005, 0.1),
    Fault.STORAGE_SLOW: (0.002, 0.2),
    Fault.TASK_FAILED: (0.005, 0.08),
    Fault.COMMIT_FAILED: (0.02, 0.6),
    Fault.DECLINED: (0.02, 0.3),
    Fault.END_HOOK_FAILED: (0.3, 1.0),
    Fault.LATE_WRITE: (0.1, 0.5),
}
#: The share of runs in which syncs fail, and the range of their rate.
_SYNCS_FAIL = 0.2
_SYNC_RATE = (0.002, 0.05)
#: The share of runs in which a user cancels the job.
_CANCELED = 0.1
#: Least and most mean time between two TIMED faults of a kind, in virtual ms.
_TIMED_RATES_MS = (400.0, 4_000.0)
#: Protocol states, in the order in which a job and a checkpoint reach them. Half of the timed
#: faults wait for one.
STATES = (
    "CREATED",
    "RUNNING",
    "ALLOCATING",
    "TRIGGERING",
    "WAITING",
    "FINALIZING",
    "COMMITTING",
    "FAILING",
    "RESTARTING",
    "FINISHED",
    "FAILED",
    "SUSPENDED",
)


@dataclass(frozen=True, kw_only=True)
class FaultPlan:
    """The faults of one run."""

    #: Probability for each operation; for TIMED faults the mean time between two, in virtual ms.
    rates: dict[Fault, float]
    #: When faults cease, in virtual microseconds.
    until_us: int

    def describe(self) -> str:
        """The plan as text, one line for each kind."""
        lines = [
            f"  {fault.value}: every {rate:.0f} ms"
            if fault in TIMED
            else f"  {fault.value}: {rate:.2%}"
            for fault, rate in self.rates.items()
        ]
        return "\n".join([f"faults until {self.until_us / 1e6:.1f} s:", *(lines or ["  none"])])


def draw_plan(random: Random, *, seconds: float, syncs: Random) -> FaultPlan:
    """Draw few kinds of faults for some runs and all for others, so each kind also occurs alone.

    ``syncs`` draws whether syncs fail. It is a separate stream, so that seeds without failing syncs
    keep their stories. ``draw_cancel`` draws the cancellation.
    """
    apart = (
        *(Fault.SYNC_FAILED, Fault.CANCEL_REQUESTED),
        *(Fault.REQUEST_FAILED, Fault.STORE_STRUCK, Fault.DISK_SLOW),
    )
    kinds = [fault for fault in Fault if fault not in apart]
    count = random.choice((0, 1, 2, 3, 4, 6, len(kinds), len(kinds)))
    rates: dict[Fault, float] = {}
    for fault in sorted(random.sample(kinds, count), key=lambda one: one.value):
        least, most = _TIMED_RATES_MS if fault in TIMED else _RATES[fault]
        rates[fault] = least * (most / least) ** random.random()
    if syncs.random() < _SYNCS_FAIL:
        least, most = _SYNC_RATE
        rates[Fault.SYNC_FAILED] = least * (most / least) ** syncs.random()
    return FaultPlan(rates=rates, until_us=round(seconds * 1e6 * random.uniform(0.3, 1.0)))


def draw_cancel(random: Random, until_us: int) -> int | None:
    """When a user cancels the job, in virtual microseconds; None in most runs.

    Often early, since many jobs finish long before ``until_us``.
    """
    return round(until_us * random.random() ** 3) if random.random() < _CANCELED else None


class Injector:
    """Decides, for each operation, whether a fault strikes it."""

    def __init__(self, plan: FaultPlan, random: Random, now_us: Callable[[], int]) -> None:
        self._plan = plan
        self._random = random
        self._now_us = now_us
        #: (fault, protocol state in which it struck) -> how often; for a mishap, the state in
        #: which it ended the newest driver.
        self.struck: Counter[tuple[Fault | Mishap, str]] = Counter()

    @property
    def over(self) -> bool:
        """Whether the faults have ceased."""
        return self._now_us() >= self._plan.until_us

    def strikes(self, fault: Fault, state: Callable[[], str]) -> bool:
        """Whether this fault strikes now."""
        rate = self._plan.rates.get(fault, 0.0)
        if not rate or self.over or self._random.random() >= rate:
            return False
        self.note(fault, state())
        return True

    def note(self, fault: Fault | Mishap, state: str) -> None:
        """Count a fault that struck."""
        self.struck[fault, state] += 1

    def aim(self) -> str | None:
        """The state that a timed fault waits for; None: it strikes as soon as it is due."""
        return self._random.choice(STATES) if self._random.random() < 0.5 else None

    def next_us(self, fault: Fault) -> int | None:
        """Virtual microseconds until a timed fault strikes next; None: never."""
        rate = self._plan.rates.get(fault)
        if rate is None or self.over:
            return None
        return round(self._random.expovariate(1 / (rate * 1_000)))


#: The share of runs that have mishaps, and the most mishaps in one run.
_SHARE = 0.2
#: The share of runs in which checkpoints are damaged, and of those with stores.
_DAMAGED = 0.1
_DAMAGED_OFTEN = 0.7
_MOST = 3


class Mishap(enum.Enum):
    """A kind of mishap."""

    BACKUP_PUT_BACK = "backup restored"
    SAVEPOINT_AGAIN = "savepoint started again"
    VOLUME_NOT_MOUNTED = "volume not mounted"
    CHECKPOINT_DAMAGED = "checkpoint damaged"
    SAVEPOINT_ELSEWHERE = "savepoint started with other tables"
    RECORDS_PUT_BACK = "records restored without their checkpoints"
    IDS_PUT_BACK = "ids restored without the records"
    RECORD_MISDIRECTED = "an older record written over the newest"


#: What people do to a job's directory.
_OF_DIRECTORIES = (Mishap.BACKUP_PUT_BACK, Mishap.SAVEPOINT_AGAIN, Mishap.VOLUME_NOT_MOUNTED)
#: Rarer ones, each in a share of runs of its own, and that share.
_RARE = (
    Mishap.SAVEPOINT_ELSEWHERE,
    Mishap.RECORDS_PUT_BACK,
    Mishap.IDS_PUT_BACK,
    Mishap.RECORD_MISDIRECTED,
)
_RARE_SHARE = 0.08


@dataclass(frozen=True, kw_only=True)
class Backup:
    """A copy of a job's directory."""

    files: dict[str, bytes]
    record: JobRecord


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The job that the next command runs, and what undoes a mishap."""

    job_id: JobId
    from_savepoint: str | None
    #: The files of the job's directory before it was replaced; None: it was not.
    files: dict[str, bytes] | None = None
    #: A file that was damaged, and what it was.
    damaged: tuple[str, bytes] | None = None


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A mishap after which drivers refuse to run the job, and the standing to go back to."""

    mishap: Mishap
    before: Standing
    #: Drivers must refuse it. Otherwise they may.
    must: bool = True
    #: A damaged checkpoint, and the one from which the job continues unless they do.
    damaged: str = ""
    known: int | None = None


def draw_mishaps(random: Random, until_us: int) -> list[tuple[int, Mishap]]:
    """The mishaps of a run with their times in virtual microseconds; most runs have none."""
    if random.random() >= _SHARE:
        return []
    return [
        (random.randrange(until_us // 5, until_us), random.choice(_OF_DIRECTORIES))
        for _ in range(random.randint(1, _MOST))
    ]


def draw_rare_mishaps(random: Random, until_us: int) -> list[tuple[int, Mishap]]:
    """The rarer mishaps of a run: at most one of each, often early as in ``draw_cancel``."""
    return [
        (1 + round(until_us * random.random() ** 2), mishap)
        for mishap in _RARE
        if random.random() < _RARE_SHARE
    ]


def draw_damage(random: Random, until_us: int, *, often: bool) -> list[int]:
    """When checkpoints are damaged, in virtual microseconds; none are in most runs.

    Often early, as in ``draw_cancel``.
    """
    if random.random() >= (_DAMAGED_OFTEN if often else _DAMAGED):
        return []
    return [round(until_us * random.random() ** 2) for _ in range(random.randint(1, _MOST))]


def beyond(tables: Mapping[str, TableVersion], job_id: JobId, epoch: int) -> bool:
    """Whether a table has a later epoch of the job."""
    return any(
        later > epoch
        for version in tables.values()
        for transaction, later in version.transactions.items()
        if transaction.startswith(f"{job_id}/")
    )


def since_savepoint(tables: Mapping[str, TableVersion], savepoint: CompletedCheckpoint) -> bool:
    """Whether some table's newest commit has rows that the savepoint does not know.

    It came after the savepoint and the epochs that it knows, or a job that started from another
    savepoint of the same job committed what was pending there.
    """
    known = {**savepoint.ancestors, savepoint.job_id: savepoint.checkpoint_id}
    pending = pending_of(savepoint)
    return any(
        version.epoch > known.get(version.job_id, 0)
        or (
            version.job_id == savepoint.job_id
            and not version.job_directory.endswith(version.job_id)
            and version.epoch not in pending.get(root.rpartition("/")[2], {})
        )
        for root, version in tables.items()
    )
