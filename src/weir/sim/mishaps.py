"""What people do to a job's directories and with its commands: a backup put back, an old savepoint begun again, a volume
that is not mounted (PROTOCOL P19, P21).

A mishap comes while no driver lives. Either the job goes on as if it were meant, or the drivers refuse to run it; then the
mishap is undone. Which of both is right follows from the tables alone: what they show and the job would not know of must
never be written again::

    ==================  ==========================  ====================================
    mishap              goes on from                refused if a table has a commit
    ==================  ==========================  ====================================
    backup put back     the records of the copy     of the job, beyond the copy's record
    savepoint again     that savepoint              that came after the savepoint
    volume not mounted  nothing                     at all
    ==================  ==========================  ====================================
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from weir.core.types import CompletedCheckpoint, JobId
from weir.sim.table import TableVersion
from weir.state.job_log import JobRecord

#: Of all runs, how many have mishaps, and how many these have at most.
_SHARE = 0.2
_MOST = 3


class Mishap(enum.Enum):
    """What happens."""

    BACKUP_PUT_BACK = "backup put back"
    SAVEPOINT_AGAIN = "savepoint begun again"
    VOLUME_NOT_MOUNTED = "volume not mounted"


@dataclass(frozen=True, kw_only=True)
class Backup:
    """A copy of a job's directory."""

    job_id: JobId
    files: dict[str, bytes]
    record: JobRecord


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Which job the commands stand for, and what undoes a mishap."""

    job_id: JobId
    from_savepoint: str | None
    #: The directory of the job as it was, if it was replaced.
    files: dict[str, bytes] | None = None


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A mishap after which drivers must refuse to run the job, and what undoes it."""

    mishap: Mishap
    before: Standing


def draw_mishaps(random: Random, until_us: int) -> list[tuple[int, Mishap]]:
    """When each strikes, in virtual microseconds; most runs have none."""
    if random.random() >= _SHARE:
        return []
    return [
        (random.randrange(until_us // 5, until_us), random.choice(list(Mishap)))
        for _ in range(random.randint(1, _MOST))
    ]


def beyond_backup(tables: Mapping[str, TableVersion], backup: Backup) -> bool:
    """Whether a table has an epoch of the job that the copy's record does not know."""
    completed = backup.record.completed or 0
    return any(
        epoch > completed
        for version in tables.values()
        for transaction, epoch in version.transactions.items()
        if transaction.startswith(f"{backup.job_id}/")
    )


def since_savepoint(tables: Mapping[str, TableVersion], savepoint: CompletedCheckpoint) -> bool:
    """Whether the newest commit of a table is neither the savepoint's own nor of those that it knows."""
    known = {**savepoint.ancestors, savepoint.job_id: savepoint.checkpoint_id}
    return any(version.epoch > known.get(version.job_id, 0) for version in tables.values())
