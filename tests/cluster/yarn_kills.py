"""Kills one job on YARN, all of whose files are on HDFS, again and again, and counts its rows.

``python -m tests.cluster.yarn_kills --kills 8 --seed 1`` kills eight times each: the application
master (its JVM, and the driver's Python process), an executor, a node manager with all that it
runs, and a data node; and eight times takes the name node away for a minute. With
``--mode client``, the driver is this machine's, and is started again as a supervisor does.

The seed chooses the order and the moments. Before each kill numbers land, which the job is at work
on, and after it some more: how long it takes until all are in the files of a sink is what the table
shows. At the end the job is drained, and each sink must have each row once, as computed from the
numbers alone. ``--sinks all`` gives it every sink that Weir has for such a job, with a Kafka broker
and a PostgreSQL server of their own (``python -m tests.kafka.jars`` fetches the broker).
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

from tests.cluster.lean_environment import make_environment
from tests.cluster.servers import running_servers
from tests.cluster.yarn import running_yarn
from tests.cluster.yarn_job import YarnJob
from tests.kit.place import ROWS_PER_FILE, Place, Run

#: Files that land before a kill, and after it.
_BEFORE, _AFTER = 3, 2
#: A kill comes at most so long after the numbers landed.
_MOMENT_S = 4.0
_NAME_NODE_AWAY_S = 60.0
_DATA_NODE_AWAY_S = 15.0
_AGAIN_S = 1.0


class Kills:
    """One job, and what was done to it."""

    def __init__(self, job: YarnJob, chance: random.Random, *, mode: str) -> None:
        self._job = job
        self._random = chance
        self._options = ("--deploy-mode", mode)
        self.is_cluster = mode == "cluster"
        self._run = self._start()
        #: Seconds until all rows were there, by what was killed.
        self.seconds: dict[str, list[float]] = defaultdict(list)
        #: How often a driver of this machine had to be started again, by what was killed.
        self.restarts: dict[str, int] = defaultdict(int)
        self.kinds: dict[str, Callable[[], None]] = {
            "executor": job.kill_executor,
            "node manager": self._lose_node,
            "data node": self._take_data_node,
            "name node": self._take_name_node,
        }
        if self.is_cluster:
            self.kinds["application master"] = job.kill_master
            self.kinds["driver's Python"] = job.kill_driver
        else:
            self.kinds["driver"] = self._kill_client

    def live(self, kills: int, kinds: list[str], *, until_s: float) -> None:
        """Kill each kind once in each of so many rounds; no more from that time on."""
        self._job.land(1)
        self._wait("start")
        rounds = (self._random.sample(kinds, len(kinds)) for _ in range(kills))
        for number, kind in enumerate(chain.from_iterable(rounds)):
            if time.monotonic() > until_s:
                return
            self._job.land(_BEFORE)
            time.sleep(self._random.uniform(0, _MOMENT_S))
            began_s = time.monotonic()
            self.kinds[kind]()
            self._job.land(_AFTER)
            self._wait(kind)
            took_s = time.monotonic() - began_s
            self.seconds[kind].append(took_s)
            print(f"{number + 1}: {kind}, {took_s:.0f} s", flush=True)

    def end(self) -> int:
        """Drain the job and compare its sinks; return the rows compared."""
        self._job.drain(self._run)
        return self._job.assert_exact()

    def story(self) -> str:
        """What everybody has printed, and what the driver is doing."""
        job, run = self._job, self._run
        return "\n".join((run.story(), job.log(run), job.cluster.log, job.threads(run)))

    def _start(self) -> Run:
        return self._job.start("unbounded", *self._options)

    def _wait(self, kind: str) -> None:
        """Wait until all numbers are in the sinks; a driver that has ended is started again."""

        def revive() -> None:
            if self._run.process.poll() is not None:
                assert not self.is_cluster, self.story()
                self.restarts[kind] += 1
                time.sleep(_AGAIN_S)
                self._run = self._start()

        self._job.wait_for_rows(revive)

    def _kill_client(self) -> None:
        self._run.process.kill()
        self._run.process.wait()

    def _lose_node(self) -> None:
        cluster = self._job.cluster
        cluster.lose_node(self._random.choice(cluster.nodes))
        cluster.add_node()

    def _take_data_node(self) -> None:
        number = self._random.randrange(2)
        self._job.cluster.command("stop-data-node", number)
        time.sleep(_DATA_NODE_AWAY_S)
        self._job.cluster.command("start-data-node")

    def _take_name_node(self) -> None:
        self._job.cluster.command("stop-name-node")
        time.sleep(_NAME_NODE_AWAY_S)
        self._job.cluster.command("start-name-node")


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="kill a job on YARN")
    parser.add_argument("--kills", type=int, default=8, help="of each kind")
    parser.add_argument("--minutes", type=float, default=120, help="kill no longer")
    parser.add_argument("--kinds", default="", help="separated by commas; default: all")
    parser.add_argument("--mode", choices=("cluster", "client"), default="cluster")
    parser.add_argument("--sinks", choices=("hdfs", "all"), default="hdfs")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="weir-yarn-kills-"))
    place, began_s = Place(directory), time.monotonic()
    extras = {"hdfs", "kafka", "postgres"} if given.sinks == "all" else {"hdfs"}
    python = make_environment(directory / "environment", extras)
    with ExitStack() as stack:
        servers = stack.enter_context(running_servers()) if given.sinks == "all" else None
        cluster = stack.enter_context(running_yarn())
        os.environ |= cluster.environment
        job = YarnJob(cluster, place, python, servers)
        rows = _killed(job, given)
    if not rows:
        return 1
    print(
        f"seed {given.seed}, sinks {given.sinks}: {job.landed * ROWS_PER_FILE} numbers, {rows} rows"
        f" compared, each as it must be; {time.monotonic() - began_s:.0f} s in all"
    )
    return 0


def _killed(job: YarnJob, given: argparse.Namespace) -> int:
    """Kill a job; return the rows that were compared, 0 if something went wrong."""
    place = job.place
    kills = Kills(job, random.Random(given.seed), mode=given.mode)
    try:
        kinds = given.kinds.split(",") if given.kinds else list(kills.kinds)
        kills.live(given.kills, kinds, until_s=time.monotonic() + given.minutes * 60)
        return kills.end()
    except Exception as error:
        (place.directory / "story").write_text(kills.story())
        print(f"{type(error).__name__}: {str(error)[:2000]}\nsee {place.directory}/story")
        return 0
    finally:
        place.clear()
        for kind, seconds in sorted(kills.seconds.items()):
            print(
                f"{kind}: {len(seconds)} kills, median {statistics.median(seconds):.0f} s, longest"
                f" {max(seconds):.0f} s, started again {kills.restarts[kind]} times"
            )


if __name__ == "__main__":
    sys.exit(main())
