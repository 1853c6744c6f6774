"""A Kafka broker of the tests' own, of one node, on free ports of loopback.

It is the real one (``jars.py``). It starts in some four seconds and takes 250 MB: small on purpose,
with one partition each for offsets and transactions, and a quick compiler. It does not sync its
files: killing the process loses nothing that the system has.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.kafka import jars
from tests.kit.ports import free_ports
from tests.kit.server_process import ServerProcess
from tests.kit.waiting import wait_until

from weir.errors import StorageError

_PATIENCE_S = 120.0
_STOP_S = 60.0
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "4194304",
    # A test makes its topics, so that one with a wrong name fails.
    "auto.create.topics.enable": "false",
}
_JAVA = (
    "-Xmx512m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true",
)  # fmt: skip


class KafkaServer(ServerProcess):
    """One broker, with its data in a directory of its own."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        """``settings`` are lines of ``server.properties``, beside those that a test needs."""
        super().__init__("the Kafka broker", directory, patience_s=_PATIENCE_S, stop_s=_STOP_S)
        self._port, controller, secured = free_ports(3)
        #: Where clients must log in, if ``settings`` say what the listener ``SECURED`` is.
        self.secured_address = f"127.0.0.1:{secured}"
        listeners = f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}"
        if "SECURED" in (settings or {}).get("listener.security.protocol.map", ""):
            listeners += f",SECURED://{self.secured_address}"
        lines = {
            **_SETTINGS,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "listeners": listeners,
            "advertised.listeners": listeners,
            "log.dirs": str(directory / "data"),
            **(settings or {}),
        }
        text = "".join(f"{key}={value}\n" for key, value in lines.items())
        self._properties = directory / "server.properties"
        self._properties.write_text(text)
        self._format()

    @property
    def address(self) -> str:
        """Its ``bootstrap.servers``."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start the broker, on the data that it has; wait until it answers."""
        self.launch(self._java("kafka.Kafka", str(self._properties)), self._answers)

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> str:
        """Create a topic; return its name. ``config``'s names have ``_`` in place of ``.``."""
        from confluent_kafka.admin import AdminClient, NewTopic

        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin = AdminClient(self._client)
        made = admin.create_topics([NewTopic(name, partitions, 1, config=settings)])
        made[name].result(_PATIENCE_S)
        # A client may ask a moment before the broker itself knows it.
        wait_until(lambda: name in admin.list_topics(timeout=10).topics, f"topic {name}")
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until it is gone."""
        from confluent_kafka.admin import AdminClient

        admin = AdminClient(self._client)
        admin.delete_topics([name])[name].result(_PATIENCE_S)
        wait_until(lambda: name not in admin.list_topics(timeout=10).topics, f"no topic {name}")

    def run(self, main: str, *arguments: str) -> str:
        """Run one of Kafka's own command line tools, by its class; return what it prints."""
        done = subprocess.run(
            self._java(main, *arguments),
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        if done.returncode != 0:
            raise StorageError(f"{main} fails: {done.stdout}{done.stderr}")
        return done.stdout

    @property
    def _client(self) -> dict[str, str | int | float | bool]:
        return {"bootstrap.servers": self.address, "log_level": 0}

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            return bool(AdminClient(self._client).list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    def _format(self) -> None:
        cluster = "A" + base64.urlsafe_b64encode(os.urandom(16)).decode()[1:22]
        options = ("--standalone", "-t", cluster, "-c", str(self._properties))
        self.run("kafka.tools.StorageTool", "format", *options)

    def _java(self, main: str, *arguments: str) -> list[str]:
        home = os.environ.get("JAVA_HOME")
        java = f"{home}/bin/java" if home else "java"
        return [java, *_JAVA, "-cp", f"{jars.BROKER.directory}/*", main, *arguments]


@contextmanager
def running_server(settings: Mapping[str, str] | None = None) -> Iterator[KafkaServer]:
    """A running broker; its process and files are gone afterwards. Skips the test without jars."""
    if not jars.are_there():
        pytest.skip(jars.WHY_NOT)
    directory = Path(tempfile.mkdtemp(prefix="weir-kafka-"))
    try:
        server = KafkaServer(directory, settings)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
