"""Kills the process that publishes, around its commits, and counts what readers see.

``python -m tests.kafka.kills --kills 300 --seed 1`` does so many times. With ``--until-unknown 30``
it goes on until so many epochs had been committed whose process died before it knew. ``python -m
tests.kafka.kills writer ...`` is the process: a sink whose job's records are one file. It publishes
epoch after epoch, each once it is in the file, as a driver does.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kafka.reading import records
from tests.kafka.server import KafkaServer, running_server
from tests.kafka.staged import StagedTopic, flushed
from tests.kit.sink import sink_context

from weir.kernel import MACHINE
from weir.sinks.kafka.client import KafkaClient, Outgoing, Producer
from weir.sinks.kafka.confluent import ConfluentClient

_LEDGER = "weir-ledger.{topic}.out"
#: Where a kill strikes; most are near the commit.
_PLACES = ("commit", "commit", "commit", "sent", "begin", "done", "any")


class _Told(ConfluentClient):
    """Reports what its producers do, and may be told to hold."""

    def producer(self, transactional_id: str, *, timeout_ms: int, within_s: float) -> Producer:
        made = super().producer(transactional_id, timeout_ms=timeout_ms, within_s=within_s)
        return _TellingProducer(made)


class _TellingProducer:
    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def begin(self) -> None:
        tell("begin")
        self._producer.begin()

    def send(self, records: Iterable[Outgoing]) -> int:
        return self._producer.send(records)

    def flush(self, within_s: float) -> Any:
        ends = self._producer.flush(within_s)
        tell("sent")
        return ends

    def commit(self, within_s: float) -> None:
        tell("commit")
        self._producer.commit(within_s)
        tell("done")

    def abort(self, within_s: float) -> None:
        self._producer.abort(within_s)

    def close(self) -> None:
        self._producer.close()


def tell(*words: object) -> None:
    """One line for the process that kills this one."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def write(servers: str, topic: str, directory: Path, rows: int) -> None:
    """Publish epochs until killed."""
    records_file = directory / "records"
    state = json.loads(records_file.read_text()) if records_file.exists() else {"attempt": 0}
    state["attempt"] += 1
    keep(records_file, state)
    staging = str(directory / "staged")
    conf = {"linger.ms": 2}
    sink = StagedTopic(topic, servers=servers, staging=staging, conf=conf)

    def connect(_: object) -> KafkaClient:
        return _Told(servers, conf, MACHINE)

    sink.connect = connect
    sink.open(sink_context(attempt=state["attempt"], newest=state.get("recorded", 0)))
    tell("open")
    if state.get("epoch", 0) > state.get("recorded", 0):
        tell("again" if sink.commit(state["epoch"], state["payloads"]) else "skipped")
        state["recorded"] = state["epoch"]
        keep(records_file, state)
    sink.clean(state["attempt"])
    while True:
        epoch = state.get("epoch", 0) + 1
        of_epoch = [{"value": b"%d %d" % (epoch, n)} for n in range(rows)]
        payloads = flushed(sink, epoch, of_epoch, directory)
        # The checkpoint is complete.
        state |= {"epoch": epoch, "payloads": payloads}
        keep(records_file, state)
        assert sink.commit(epoch, payloads) == rows
        state["recorded"] = epoch
        keep(records_file, state)
        tell("recorded", epoch)


def keep(path: Path, state: dict[str, Any]) -> None:
    """Replace the records."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(state))
    new.replace(path)


@dataclass
class Result:
    """What a run of kills has found."""

    kills: int = 0
    #: Epochs that were committed without their process knowing, and were then skipped.
    unknown: int = 0
    epochs: int = 0
    rows: int = 0
    doubled: int = 0
    missing: int = 0
    odd: int = 0
    uncommitted: int = 0
    where: Counter[str] = field(default_factory=Counter)

    @property
    def is_exact(self) -> bool:
        """Whether readers see each row once."""
        return not (self.doubled or self.missing or self.odd)


def run(
    server: KafkaServer, directory: Path, *, kills: int, seed: int, rows: int, unknown: int = 0
) -> Result:
    """Kill a writer again and again, then compare what is visible with its records.

    At least ``kills`` times, and until there were ``unknown`` commits that it did not know of.
    """
    chance, result = random.Random(seed), Result()
    topic = server.create_topic(f"kills-{seed}-{kills}", partitions=3)
    while result.kills < kills or result.unknown < unknown:
        _one(server, topic, directory, rows, chance=chance, result=result)
        result.kills += 1
    _one(server, topic, directory, rows, chance=chance, result=result, last=True)
    state = json.loads((directory / "records").read_text())
    counted: Counter[int] = Counter()
    rows_seen = Counter(each.value() for each in records(server, topic))
    for value, count in rows_seen.items():
        counted[int((value or b"").split()[0])] += count
        result.doubled += count - 1
    result.epochs, result.rows = len(counted), sum(counted.values())
    result.missing = sum(epoch not in counted for epoch in range(1, state["recorded"] + 1))
    result.odd = sum(count != rows for count in counted.values())
    everything = records(server, topic, isolation="read_uncommitted")
    result.uncommitted = len(everything) - result.rows
    return result


def _one(
    server: KafkaServer,
    topic: str,
    directory: Path,
    rows: int,
    *,
    chance: random.Random,
    result: Result,
    last: bool = False,
) -> None:
    """Run the writer once, and kill it; the last time after its second record."""
    place, after = chance.choice(_PLACES), chance.randint(1, 3)
    if last:
        place, after = "recorded", 2
    command = [sys.executable, "-m", "tests.kafka.kills", "writer", server.address, topic]
    process = subprocess.Popen(
        [*command, str(directory), str(rows)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    seen, phase = 0, ""
    for line in process.stdout:
        phase = line.split()[0]
        result.unknown += phase == "skipped"
        if phase == "open" and place == "any":
            threading.Timer(chance.uniform(0, 0.5), process.kill).start()
        if phase == place:
            seen += 1
            if seen == after:
                # A commit takes some milliseconds.
                time.sleep(0 if last else chance.choice((0, chance.uniform(0, 0.03))))
                process.kill()
    assert process.wait() == -9, f"the writer ended by itself after {phase}"
    result.where[phase] += 1


def main() -> int:
    """The command line; see the module's docstring."""
    if sys.argv[1:2] == ["writer"]:
        servers, topic, directory, rows = sys.argv[2:]
        write(servers, topic, Path(directory), int(rows))
    parser = argparse.ArgumentParser(description="kill the process that publishes to Kafka")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--until-unknown", type=int, default=0)
    given = parser.parse_args()
    with running_server() as server, tempfile.TemporaryDirectory() as directory:
        found = run(
            server,
            Path(directory),
            kills=given.kills,
            seed=given.seed,
            rows=given.rows,
            unknown=given.until_unknown,
        )
    print(found)
    return 0 if found.is_exact else 1


if __name__ == "__main__":
    sys.exit(main())
