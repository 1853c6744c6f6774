"""A reader without Spark that takes a topic and a Delta table at one cut, again and again."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
from confluent_kafka import Consumer, TopicPartition
from tests.kafka.server import KafkaServer

import weir
from weir.errors import CutNotFoundError, StorageError

_PATIENCE_S = 60.0
_PAUSE_S = 0.3
_COLUMNS = ("start", "n", "total")

Rows = Counter[tuple[int, ...]]


class Disagreement(Exception):
    """The topic and the table showed different rows at one cut."""


class Cuts:
    """A thread that reads both up to the newest cut and compares their rows, until it is ended.

    Records of a topic and files of a table do not change, so each is fetched once; which of them
    belong to a cut is found anew each time.
    """

    def __init__(self, server: KafkaServer, table: Path, directory: Path) -> None:
        self._table = str(table)
        self._sink = weir.sinks.KafkaTopic(
            "windows",
            servers=server.address,
            staging=str(directory / "staged" / "windows"),
            value="json",
            key="start",
        )
        self._consumer = Consumer(
            {
                "bootstrap.servers": server.address,
                "group.id": "cuts",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        #: By partition: the offset after what was fetched, and the rows with their offsets.
        self._fetched: dict[int, int] = {}
        self._records: list[tuple[int, int, tuple[int, ...]]] = []
        self._files: dict[str, Rows] = {}
        self._over = threading.Event()
        self.readings = 0
        #: Readings at a cut that the one before did not have.
        self.cuts = 0
        #: How often there was no answer, as while the broker is down.
        self.unanswered = 0
        self.rows = 0
        self._newest: tuple[str, int] | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._read_on, name="cuts", daemon=True)
        self._thread.start()

    def has_read(self, ends: dict[int, int]) -> bool:
        """Whether the job has read its input up to these offsets, as of the newest checkpoint."""
        if self.error is not None:
            raise self.error
        try:
            positions = weir.read_consistent({"topic": self._sink}).input_positions()
        except StorageError:
            # The checkpoint is not retained any more.
            return False
        return {"in": {str(number): end for number, end in ends.items()}} in [
            offsets for of_source in positions.values() for offsets in of_source
        ]

    def end(self) -> None:
        """Stop reading."""
        self._over.set()
        self._thread.join()

    def _read_on(self) -> None:
        try:
            while not self._over.wait(_PAUSE_S):
                try:
                    self._read()
                except (CutNotFoundError, StorageError, TimeoutError):
                    self.unanswered += 1
        except BaseException as error:
            self.error = error

    def _read(self) -> None:
        cut = weir.read_consistent({"topic": self._sink, "table": self._table})
        ends = cut.offsets("topic").get("windows", {})
        self._fetch(ends)
        of_topic = Rows(row for place, offset, row in self._records if offset < ends.get(place, 0))
        of_table = self._rows_of(cut.table("table"))
        if of_topic != of_table:
            raise Disagreement(
                f"at checkpoint {cut.checkpoint_id} of job {cut.job_id}: only in the topic"
                f" {(of_topic - of_table).most_common(3)}, only in the table"
                f" {(of_table - of_topic).most_common(3)}"
            )
        self.readings += 1
        self.cuts += self._newest != (cut.job_id, cut.checkpoint_id)
        self._newest = (cut.job_id, cut.checkpoint_id)
        self.rows += of_topic.total()

    def _fetch(self, ends: dict[int, int]) -> None:
        """Read the topic on, up to the cut's offsets."""
        behind = {number for number, end in ends.items() if self._fetched.get(number, 0) < end}
        if not behind:
            return
        self._consumer.assign(
            [
                TopicPartition("windows", number, self._fetched.get(number, 0))
                for number in sorted(behind)
            ]
        )
        until = time.monotonic() + _PATIENCE_S
        while behind:
            if time.monotonic() > until or self._over.is_set():
                raise TimeoutError(f"partitions {behind} do not come up to {ends}")
            message = self._consumer.poll(0.2)
            if message is None or message.error() is not None:
                continue
            number, offset = int(message.partition() or 0), int(message.offset() or 0)
            value: dict[str, Any] = json.loads(message.value() or b"")
            self._records.append((number, offset, tuple(value[name] for name in _COLUMNS)))
            self._fetched[number] = offset + 1
            if offset + 1 >= ends.get(number, 0):
                behind.discard(number)

    def _rows_of(self, table: Any) -> Rows:
        found = Rows()
        for uri in table.file_uris():
            if uri not in self._files:
                columns = pq.read_table(unquote(uri), columns=list(_COLUMNS)).to_pydict()
                self._files[uri] = Rows(zip(*(columns[name] for name in _COLUMNS), strict=True))
            found.update(self._files[uri])
        return found
