"""Kills one job that goes from a topic to Kafka, Delta and PostgreSQL, and counts its rows.

``python -m tests.kafka.jobs --kills 60 --rows 200000 --seed 1``. A seed chooses what is killed by
SIGKILL and when: the driver and its JVM at random moments, an executor, and the driver at each step
of a publication, of a transaction in PostgreSQL and of a recommit. In between the broker is stopped
and started; and, counted apart, the broker itself is killed right after it has answered a commit.
Then either the job goes on, or it names the transaction that hangs, and the command that it names
is run.

All the time a reader without Spark compares the topic and the Delta table at one cut
(``cuts.py``). At the end each target must have each row once, as computed from the numbers alone.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shlex
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.kafka import jars
from tests.kafka.cuts import Cuts
from tests.kafka.feed import Feed
from tests.kafka.reading import records
from tests.kafka.server import KafkaServer, running_server
from tests.kit import postgres_server
from tests.kit.place import Place, Run, delta_rows
from tests.kit.postgres_server import PostgresServer
from tests.kit.waiting import wait_until
from tests.soak.deaths import kill_driver, kill_executor, kill_jvm

from weir.kernel import MACHINE
from weir.sinks.kafka.client import Partition
from weir.sinks.kafka.confluent import ConfluentClient

PIPELINE = Path(__file__).with_name("jobs_pipeline.py")
LEDGER = "weir-ledger.windows.topic"
_PARTITIONS = 3
_WINDOW_S = 10
_RECOVERS_S = 180.0
#: After this time a point that was not passed counts as not reached.
_REACHED_S = 90.0
#: A loaded machine reads some four times as many rows a second.
_READ_PER_S = 100.0
#: The share of kills at random moments that come before the first checkpoint.
_EARLY = 0.25
_DRIVER, _JVM, _EXECUTOR = "driver", "JVM", "executor"
#: One round of kills; those of a group follow each other.
_ROUND = (
    (_DRIVER,),
    (_JVM,),
    (_EXECUTOR, _DRIVER),
    ("before-a-publication",),
    ("within-a-publication", "after-a-recommit"),
    ("after-a-publication", "before-a-recommit"),
    ("within-a-transaction",),
    ("after-the-record",),
)
#: In these the driver dies with a Kafka transaction begun and not recorded.
_IN_A_COMMIT = ("within-a-publication", "after-a-publication")
#: How many kills of processes come between two clean stops, and between two kills, of the broker.
_STOP_EACH = 10
_BROKER_EACH = 10
_CONFS = (
    "execution.checkpointing.num-retained=5",
    "restart-strategy.type=fixed-delay",
    "restart-strategy.fixed-delay.attempts=1000",
    "restart-strategy.fixed-delay.delay=200ms",
    "weir.sink.commit.initial-backoff=100ms",
)
_COMPLETED = re.compile(r"^checkpoint \d+ completed", re.MULTILINE)
_REPAIR = re.compile(r"run 'weir (repair-kafka [^']+)'")

Rows = Counter[tuple[int, ...]]


class WrongRows(Exception):
    """A target lacks rows, or has some twice."""


class Jobs:
    """One job, its input, its targets, and what was killed."""

    def __init__(
        self,
        place: Place,
        broker: KafkaServer,
        database: PostgresServer,
        chance: random.Random,
        *,
        rows: int,
        kills: int,
    ) -> None:
        self._place = place
        self._broker = broker
        self._database = database
        self._random = chance
        self._rows = rows
        self._kills = kills
        self._run: Run | None = None
        self._began_s = time.monotonic()
        broker.create_topic("in", _PARTITIONS)
        broker.create_topic("windows", _PARTITIONS)
        database.rows("CREATE TABLE windows (start bigint, n bigint, total bigint)")
        self._feed = Feed(broker, "in", partitions=_PARTITIONS, rows=rows)
        self.cuts = Cuts(broker, place.directory / "out" / "windows", place.directory)
        self.where: Counter[str] = Counter()
        #: How many struck a commit to Kafka, by construction or as its open transaction shows.
        self.in_a_commit = 0
        self.stops = 0
        #: What became of kills of the broker.
        self.broker: Counter[str] = Counter()

    def live(self) -> None:
        """Kill until it is enough."""
        for number, place in enumerate(self._places()):
            self._feed.allow((number + 1) / (self._kills + 1))
            if number % _STOP_EACH == _STOP_EACH - 1:
                self._stop_the_broker()
            if number % _BROKER_EACH == _BROKER_EACH - 1:
                self._kill_the_broker()
            self._strike(place)
            self._check_threads()

    def end(self) -> int:
        """Let the job read all, drain it, compare each target; return the rows compared."""
        self._feed.allow(1)
        with self._feed.at_rest():
            pass
        run = self._running()
        wait_until(
            lambda: self.cuts.has_read(self._feed.ends()),
            "the job has read all numbers",
            within_s=_RECOVERS_S + self._rows / _READ_PER_S,
        )
        stopped = self._place.weir("stop", "jobs", "--drain", "--address", run.address)
        if stopped.returncode or run.wait(_RECOVERS_S):
            raise WrongRows(
                f"the job was not drained: {stopped.stdout}{stopped.stderr}{run.story()}"
            )
        self.cuts.end()
        self._feed.end()
        self._check_threads()
        return self._compare()

    def clear(self) -> None:
        """End what runs."""
        self._feed.end()
        self.cuts.end()

    # -- kills

    def _places(self) -> list[str]:
        found: list[str] = []
        while len(found) < self._kills:
            groups = list(_ROUND)
            self._random.shuffle(groups)
            found += [place for group in groups for place in group]
        return found[: self._kills]

    def _strike(self, place: str) -> None:
        began_s = time.monotonic()
        match place:
            case "driver" | "JVM":
                struck = self._strike_at_random(place)
            case "executor":
                struck = self._strike_an_executor()
            case _:
                struck = self._strike_at(place)
        self.where[struck] += 1
        in_a_commit = struck in _IN_A_COMMIT or (struck != _EXECUTOR and self._is_in_a_commit())
        self.in_a_commit += in_a_commit
        self._say(
            f"kill {self.where.total()}: {struck}{', in a commit' if in_a_commit else ''},"
            f" after {time.monotonic() - began_s:.0f} s; {self.cuts.readings} readings"
        )

    def _strike_at_random(self, place: str) -> str:
        if self._run is None and self._random.random() < _EARLY:
            run = self._run = self._start()
            time.sleep(self._random.uniform(0, 10))
        else:
            run = self._running()
            time.sleep(self._random.uniform(0, 4))
        if place == _DRIVER or not kill_jvm(run):
            place = _DRIVER
            kill_driver(run)
        elif self._proceeds(run, self._completed(run) + 2):
            # It had only begun: the driver has started another one.
            return place
        elif run.process.poll() == 0:
            raise WrongRows(f"the driver ended well without its JVM: {run.story()}")
        self._gone(run)
        return place

    def _strike_an_executor(self) -> str:
        self._drop()
        run = self._run = self._start(executors=True)
        self._proceeds(run, 1)
        time.sleep(self._random.uniform(0, 3))
        if not kill_executor(run, self._random):
            raise WrongRows(f"there is no executor: {run.story()}")
        if not self._proceeds(run, self._completed(run) + 2):
            self._gone(run)
        return _EXECUTOR

    def _strike_at(self, point: str) -> str:
        self._drop()
        nth = 1 if point.endswith("recommit") else self._random.randint(1, 4)
        run = self._start_until(point, nth)
        deadline = time.monotonic() + _REACHED_S
        while run.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if run.process.poll() is None:
            kill_driver(run)
            point = f"driver ({point} not reached)"
        elif run.process.poll() != -signal.SIGKILL:
            raise WrongRows(f"the driver ended by itself before {point}: {run.story()}")
        self._gone(run)
        return point

    def _is_in_a_commit(self) -> bool:
        client = ConfluentClient(self._broker.address, {}, MACHINE)
        try:
            partitions = [Partition("windows", number) for number in range(_PARTITIONS)]
            partitions += [Partition(name, 0) for name in client.topics([LEDGER])]
            return bool(client.open_transactions(partitions))
        finally:
            client.close()

    # -- the broker

    def _stop_the_broker(self) -> None:
        """A clean stop while the job runs, for some seconds."""
        run = self._running()
        with self._feed.at_rest():
            time.sleep(self._random.uniform(0, 2))
            self._broker.stop()
            time.sleep(self._random.uniform(0, 8))
            self._broker.start()
        ended = not self._proceeds(run, self._completed(run) + 2)
        if ended:
            self._gone(run)
        self.stops += 1
        self._say(f"stop {self.stops} of the broker; the job {'ended' if ended else 'went on'}")

    def _kill_the_broker(self) -> None:
        """The driver kills the broker as soon as it has the answer to a commit."""
        self._drop()
        with self._feed.at_rest():
            process = self._broker.process
            nth = self._random.randint(1, 3)
            run = self._start_until("after-a-publication", nth, victim=process.pid)
            deadline = time.monotonic() + _REACHED_S
            while process.poll() is None and run.process.poll() is None:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.02)
            reached = process.poll() is not None
            if reached:
                self._broker.kill()
                self._broker.start()
        if not reached:
            self.broker["not reached"] += 1
            self._run = run
            self._drop()
            return
        result = "exact at once"
        while not self._proceeds(run, self._completed(run) + 2):
            self._gone(run)
            command = _REPAIR.search(run.errors)
            if command is None:
                raise WrongRows(f"the job did not get over a kill of the broker: {run.story()}")
            result = "exact after the repair"
            done = self._place.weir(*shlex.split(command[1]), "--yes")
            self._say(f"{run.error()}\n{done.stdout}{done.stderr}")
            if done.returncode:
                raise WrongRows(f"the repair fails: {done.stdout}{done.stderr}")
            run = self._start()
        self._run = run
        self._check_none_twice()
        self.broker[result] += 1
        self._say(f"kill {self.broker.total()} of the broker: {result}")

    def _check_none_twice(self) -> None:
        found = Counter(each.value() for each in records(self._broker, "windows"))
        if twice := [value for value, count in found.items() if count > 1]:
            raise WrongRows(f"{len(twice)} rows of the topic are there twice: {twice[:3]}")

    # -- runs

    def _start(self, *, executors: bool = False) -> Run:
        master = "local-cluster[2,1,1024]" if executors else "local[2]"
        return self._place.start(
            *_arguments(master), pipeline=PIPELINE, environment=self._environment()
        )

    def _start_until(self, point: str, nth: int, victim: int | None = None) -> Run:
        environment = self._environment() | ({} if victim is None else {"VICTIM": str(victim)})
        return self._place.start_until(
            point,
            nth,
            *_arguments("local[2]"),
            number=signal.SIGKILL,
            pipeline=PIPELINE,
            environment=environment,
        )

    def _environment(self) -> dict[str, str]:
        return {
            "SERVERS": self._broker.address,
            "JARS": jars.connector(),
            "DSN": self._database.loopback_dsn,
            "PGPASSWORD": postgres_server.PASSWORD,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }

    def _running(self) -> Run:
        """A driver that has completed a checkpoint."""
        run = self._run or self._start()
        self._run = run
        if not self._proceeds(run, 1):
            raise WrongRows(f"the driver does not start: {run.story()}")
        return run

    def _proceeds(self, run: Run, wanted: int) -> bool:
        """Wait for so many checkpoints of a driver; False if it ends before."""
        deadline = time.monotonic() + _RECOVERS_S
        while self._completed(run) < wanted:
            if run.process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                raise WrongRows(f"no checkpoint completes for {_RECOVERS_S} s: {run.story()}")
            time.sleep(0.1)
        return True

    def _completed(self, run: Run) -> int:
        return len(_COMPLETED.findall(run.output))

    def _drop(self) -> None:
        """End the running driver, if there is one: a kill that is not counted."""
        if self._run is not None:
            kill_driver(self._run)
            self._gone(self._run)

    def _gone(self, run: Run) -> None:
        run.wait_for_no_processes(_RECOVERS_S)
        self._run = None

    # -- rows

    def _check_threads(self) -> None:
        for error in (self._feed.error, self.cuts.error):
            if error is not None:
                raise error

    def _compare(self) -> int:
        wanted = Rows(
            (first, _WINDOW_S, sum(range(first, first + _WINDOW_S)))
            for first in range(0, self._rows, _WINDOW_S)
        )
        found = {
            "topic": Rows(self._published()),
            "Delta table": delta_rows(self._place.directory / "out" / "windows"),
            "PostgreSQL table": Rows(self._database.rows("SELECT start, n, total FROM windows")),
        }
        for name, there in found.items():
            self._say(
                f"{name}: {there.total():,} rows of {self._rows:,} numbers,"
                f" {(wanted - there).total()} missing, {(there - wanted).total()} too many"
            )
        if wrong := [name for name, there in found.items() if there != wanted]:
            raise WrongRows(f"wrong: {', '.join(wrong)}")
        return sum(there.total() for there in found.values())

    def _published(self) -> Iterator[tuple[int, ...]]:
        for each in records(self._broker, "windows"):
            row = json.loads(each.value() or b"")
            yield row["start"], row["n"], row["total"]

    def _say(self, line: str) -> None:
        print(f"{time.monotonic() - self._began_s:6.0f} s  {line}", flush=True)


def _arguments(master: str) -> list[str]:
    return ["--master", master, *(word for conf in _CONFS for word in ("--conf", conf))]


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="kill a job that reads and writes Kafka")
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="weir-kafka-jobs-"))
    place, began_s = Place(directory), time.monotonic()
    with running_server() as broker, postgres_server.running_server() as database:
        chance = random.Random(given.seed)
        jobs = Jobs(place, broker, database, chance, rows=given.rows, kills=given.kills)
        compared, problem = 0, ""
        try:
            jobs.live()
            compared = jobs.end()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        finally:
            place.clear()
            jobs.clear()
    cuts = jobs.cuts
    print(
        f"seed {given.seed}: {time.monotonic() - began_s:.0f} s, {jobs.where.total()} kills,"
        f" {jobs.in_a_commit} in a commit to Kafka, {jobs.stops} stops and"
        f" {jobs.broker.total()} kills of the broker, {compared:,} rows compared\n"
        f"kills: {dict(jobs.where)}\nkills of the broker: {dict(jobs.broker)}\n"
        f"readings of topic and table: {cuts.readings} at {cuts.cuts} cuts, {cuts.rows:,} rows,"
        f" all equal; {cuts.unanswered} without an answer"
    )
    return place.conclude(problem)


if __name__ == "__main__":
    sys.exit(main())
