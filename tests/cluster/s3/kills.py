"""Kills one job whose only storage is an S3 server, in every way, and counts its rows.

``python -m tests.cluster.s3.kills --kills 48 --seed 1``. A seed chooses what is killed by SIGKILL
and when: the driver, its JVM, an executor, the Python workers, the S3 server (which comes back some
seconds later), and the driver at steps of a checkpoint and of each sink's commit. Either the job
goes on by itself, or the same command is run again.

At the end the job is stopped with a savepoint, restored from it, and run to the end of its input.
Then the Delta table, the Iceberg table, the files, the windows and the ranks of a Python operator
must each have each row once, as computed from the numbers alone. ``--sinks all`` gives the job
every sink that Weir has for it, with a Kafka broker and a PostgreSQL server of their own (``python
-m tests.kafka.jars`` fetches the broker).
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from datetime import UTC
from pathlib import Path

from pyiceberg.catalog import Catalog, load_catalog
from tests.cluster.s3.far_place import PIPELINE, FarPlace
from tests.cluster.s3.server import S3Server, running_s3
from tests.cluster.servers import Servers, running_servers
from tests.kit.place import Place, Rows, Run
from tests.soak.deaths import kill_driver, kill_executor, kill_jvm, kill_python_workers

_DRIVER, _JVM, _EXECUTOR = "driver", "JVM", "executor"
_WORKERS, _SERVER, _STEP = "Python workers", "S3 server", "driver, at a step"
_KINDS = (_DRIVER, _JVM, _EXECUTOR, _WORKERS, _SERVER, _STEP)
#: Of a checkpoint, of the commits of ``Files``, of all sinks, and of Iceberg; and of a restore.
_STEPS = (
    "before-the-metadata",
    "before-the-record",
    "after-the-record",
    "within-one-commit",
    "between-two-sinks",
    "before-a-catalog-commit",
    "after-a-catalog-commit",
    "within-the-restore",
)
_FILES_PER_KILL = 4
_RECOVERS_S = 240.0
_READS_S = 900.0
#: After this time a point that was not passed counts as not reached.
_REACHED_S = 120.0
_CONFS = (
    "restart-strategy.type=fixed-delay",
    "restart-strategy.fixed-delay.attempts=1000",
    "restart-strategy.fixed-delay.delay=200ms",
    "weir.sink.commit.initial-backoff=100ms",
)
_COMPLETED = re.compile(r"^checkpoint \d+ completed", re.MULTILINE)


class WrongRun(Exception):
    """The job does not come back."""


class Kills:
    """One job, and what was killed."""

    def __init__(
        self, far: FarPlace, server: S3Server, chance: random.Random, servers: Servers | None
    ) -> None:
        """With ``servers``, the job has all sinks."""
        self._far = far
        self._server = server
        self._servers = servers
        self._random = chance
        self._run: Run | None = None
        self._began_s = time.monotonic()
        self._catalog = f"sqlite:///{far.place.directory / 'catalog.db'}"
        self.where: Counter[str] = Counter()
        self._environment = {
            **far.environment,
            "CATALOG": self._catalog,
            "NUMBERS": "unbounded",
            "SPARK_LOCAL_IP": "127.0.0.1",
            **self._of_servers(),
            **{
                f"PYICEBERG_CATALOG__FAR__S3__{name}": value
                for name, value in self._of_iceberg().items()
            },
        }
        self._lake().create_namespace("shop")
        far.land(_FILES_PER_KILL)

    def strike(self, kind: str) -> None:
        """Kill once; whatever is left of the driver is gone, or goes on."""
        began_s = time.monotonic()
        self._far.land(_FILES_PER_KILL)
        match kind:
            case "driver" | "JVM":
                self._strike_driver(kind)
            case "executor":
                kind = self._strike_executor()
            case "Python workers":
                kind = self._strike_workers()
            case "S3 server":
                self._strike_server()
            case _:
                kind = self._strike_step(self._random.choice(_STEPS))
        self.where[kind] += 1
        self._say(f"kill {self.where.total()}: {kind}, after {time.monotonic() - began_s:.0f} s")

    def end(self) -> int:
        """Stop with a savepoint, restore it, let the job end; the number of rows compared."""
        run = self._running()
        stopped = self._far.place.weir("stop", "far", "--address", run.address)
        if stopped.returncode or run.wait(_RECOVERS_S):
            raise WrongRun(f"the job was not stopped: {stopped.stderr}{run.story()}")
        self._gone(run)
        found = re.search(r"s3://\S+/savepoint-\S+", stopped.stdout)
        if found is None:
            raise WrongRun(f"no savepoint is named: {stopped.stdout}")
        last = self._start("--from-savepoint", found[0])
        self._proceeds(last, 1)
        self._far.wait_for_all(_READS_S)
        drained = self._far.place.weir("stop", "far", "--drain", "--address", last.address)
        if drained.returncode or last.wait(_RECOVERS_S):
            raise WrongRun(f"the job was not drained: {drained.stderr}{last.story()}")
        lake = self._lake().load_table("shop.numbers").scan().to_arrow().to_pylist()
        rows = Rows((row["id"], row["ts"].astimezone(UTC)) for row in lake)
        compared = self._far.assert_exact({"the Iceberg table": rows})
        if self._servers is None:
            return compared
        return compared + self._servers.assert_exact(self._far.place, self._far.objects / "out")

    # -- kills

    def _strike_driver(self, kind: str) -> None:
        run = self._running()
        time.sleep(self._random.uniform(0, 4))
        if kind == _DRIVER or not kill_jvm(run):
            kill_driver(run)
        run.process.wait(_RECOVERS_S)
        self._gone(run)

    def _strike_executor(self) -> str:
        self._drop()
        run = self._run = self._start("--master", "local-cluster[2,1,1024]")
        self._proceeds(run, 1)
        time.sleep(self._random.uniform(0, 3))
        if not kill_executor(run, self._random):
            raise WrongRun(f"there is no executor: {run.story()}")
        self._goes_on(run)
        self._drop()
        return _EXECUTOR

    def _strike_workers(self) -> str:
        run = self._running()
        if not kill_python_workers(run):
            return f"no {_WORKERS}"
        self._goes_on(run)
        return _WORKERS

    def _strike_server(self) -> None:
        run = self._running()
        time.sleep(self._random.uniform(0, 3))
        self._server.kill()
        time.sleep(self._random.uniform(0, 8))
        self._server.start()
        self._goes_on(run)

    def _strike_step(self, step: str) -> str:
        self._drop()
        nth = 1 if step == "within-the-restore" else self._random.randint(1, 3)
        run = self._far.place.start_until(
            step,
            nth,
            *self._arguments(),
            number=signal.SIGKILL,
            pipeline=PIPELINE,
            environment=self._environment,
        )
        deadline = time.monotonic() + _REACHED_S
        while run.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if run.process.poll() is None:
            kill_driver(run)
            step = f"not reached: {step}"
        elif run.process.poll() != -signal.SIGKILL:
            raise WrongRun(f"the driver ended by itself before {step}: {run.story()}")
        self._gone(run)
        return f"{_STEP}: {step}"

    # -- runs

    def _arguments(self) -> tuple[str, ...]:
        confs = (word for conf in _CONFS for word in ("--conf", conf))
        return ("--master", "local[2]", *confs, *self._far.settings())

    def _start(self, *arguments: str) -> Run:
        return self._far.place.start(
            *self._arguments(),
            *arguments,
            pipeline=PIPELINE,
            environment=self._environment,
        )

    def _running(self) -> Run:
        """A driver that has completed a checkpoint."""
        run = self._run = self._run or self._start()
        if not self._proceeds(run, 1):
            raise WrongRun(f"the driver does not start: {run.story()}")
        return run

    def _goes_on(self, run: Run) -> None:
        """Wait until the driver has completed two more checkpoints, or has ended."""
        if not self._proceeds(run, len(_COMPLETED.findall(run.output)) + 2):
            if run.process.poll() == 0:
                raise WrongRun(f"the driver ended well: {run.story()}")
            self._gone(run)

    def _proceeds(self, run: Run, wanted: int) -> bool:
        """Wait for so many checkpoints of a driver; False if it ends before."""
        deadline = time.monotonic() + _RECOVERS_S
        while len(_COMPLETED.findall(run.output)) < wanted:
            if run.process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                raise WrongRun(f"no checkpoint completes for {_RECOVERS_S} s: {run.story()}")
            time.sleep(0.1)
        return True

    def _drop(self) -> None:
        """End the running driver, if there is one: a kill that is not counted."""
        if self._run is not None:
            kill_driver(self._run)
            self._gone(self._run)

    def _gone(self, run: Run) -> None:
        run.wait_for_no_processes(_RECOVERS_S)
        self._run = None

    # -- what it reaches

    def _of_servers(self) -> dict[str, str]:
        if self._servers is None:
            return {}
        addresses = zip(("KAFKA", "POSTGRES"), self._servers.arguments(), strict=True)
        return {**dict(addresses), **self._servers.environment}

    def _of_iceberg(self) -> dict[str, str]:
        given = self._server.environment
        return {
            "ENDPOINT": given["AWS_ENDPOINT_URL"],
            "REGION": given["AWS_REGION"],
            "ACCESS_KEY_ID": given["AWS_ACCESS_KEY_ID"],
            "SECRET_ACCESS_KEY": given["AWS_SECRET_ACCESS_KEY"],
        }

    def _lake(self) -> Catalog:
        access = {
            f"s3.{name.lower().replace('_', '-')}": value
            for name, value in self._of_iceberg().items()
        }
        warehouse = f"{self._far.root}/out/lake"
        return load_catalog("far", type="sql", uri=self._catalog, warehouse=warehouse, **access)

    def _say(self, line: str) -> None:
        print(f"{time.monotonic() - self._began_s:6.0f} s  {line}", flush=True)


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="kill a job whose only storage is an S3 server")
    parser.add_argument("--kills", type=int, default=48)
    parser.add_argument("--sinks", choices=("s3", "all"), default="s3")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    kinds: list[str] = []
    while len(kinds) < given.kills:
        kinds += chance.sample(_KINDS, len(_KINDS))
    directory = Path(tempfile.mkdtemp(prefix="weir-s3-kills-"))
    place, began_s, compared, problem = Place(directory), time.monotonic(), 0, ""
    with ExitStack() as stack:
        server = stack.enter_context(running_s3())
        servers = stack.enter_context(running_servers()) if given.sinks == "all" else None
        kills = Kills(FarPlace(server, place), server, chance, servers)
        try:
            for kind in kinds[: given.kills]:
                kills.strike(kind)
            compared = kills.end()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        finally:
            place.clear()
    print(
        f"seed {given.seed}, sinks {given.sinks}: {time.monotonic() - began_s:.0f} s,"
        f" {kills.where.total()} kills, {compared:,} rows compared\nkills: {dict(kills.where)}"
    )
    return place.conclude(problem)


if __name__ == "__main__":
    sys.exit(main())
