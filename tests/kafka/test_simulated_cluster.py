"""The simulator's Kafka cluster beside a real broker: the sink's client sees no difference.

The same steps of a few producers on both, drawn by Hypothesis, must have the same answers: which
call fails and how, the ends of the partitions, and what readers of committed records see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from random import Random
from time import sleep
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kafka.server import KafkaServer
from tests.sim.greenlets import LIMIT_US, NoWatcher

from weir.kernel import MACHINE
from weir.sim.engine.disk import Disk
from weir.sim.engine.loop import Loop, Process
from weir.sim.stores.faults import Network, Rates
from weir.sim.stores.kafka import Cluster, SimKafkaClient
from weir.sinks.kafka.client import KafkaClient, KafkaFailure, Outgoing, Partition, Producer
from weir.sinks.kafka.confluent import ConfluentClient
from weir.sinks.kafka.failures import is_fenced

pytestmark = pytest.mark.kafka

#: What a step does, and the handle that does it: the first two have one transactional id.
Step = tuple[str, int]
_IDS = ("x", "x", "y")
_CALLS = (
    "init",
    *("begin",) * 3,
    *("send to 0",) * 3,
    *("send to 1",) * 2,
    *("commit",) * 2,
    "abort",
)
_WITHIN_S = 30.0
_TRIES = 600
_numbers = count()

STEPS = st.lists(st.tuples(st.sampled_from(_CALLS), st.integers(0, 2)), min_size=6, max_size=14)
#: Sequences that chance seldom draws, in which each handle does what is due.
KNOWN: dict[str, Sequence[Step]] = {
    "a successor aborts": [
        *(("init", 0), ("begin", 0), ("send to 0", 0), ("init", 1), ("commit", 0), ("begin", 1)),
        *(("send to 0", 1), ("commit", 1), ("begin", 0)),
    ],
    "others hide what is committed": [
        *(("init", 0), ("init", 2), ("begin", 2), ("send to 0", 2), ("begin", 0), ("send to 0", 0)),
        *(("send to 1", 0), ("commit", 0)),
    ],
    "one is aborted between two": [
        *(("init", 0), ("begin", 0), ("send to 0", 0), ("commit", 0), ("begin", 0)),
        *(("send to 0", 0), ("abort", 0), ("begin", 0), ("send to 0", 0), ("commit", 0)),
    ],
    "empty transactions": [
        *(("init", 0), ("begin", 0), ("commit", 0), ("begin", 0), ("abort", 0), ("commit", 0)),
    ],
    "a fenced producer in an empty transaction": [
        *(("init", 0), ("begin", 0), ("init", 1), ("commit", 0), ("begin", 0), ("send to 1", 0)),
        *(("abort", 0), ("begin", 0)),
    ],
}


class Story:
    """What the handles do with a topic, and how each call is answered."""

    def __init__(self, client: KafkaClient, topic: str, wait: Callable[[float], object]) -> None:
        self._client = client
        self._topic = topic
        self._wait = wait
        self._handles: dict[int, Producer] = {}
        #: The partitions of each handle's transaction.
        self._written: dict[int, set[int]] = {}
        self._places = [Partition(topic, number) for number in range(2)]

    def answers(self, steps: Sequence[Step], timeout_ms: int = 60_000) -> Iterator[Any]:
        """The answer to each step, and what is there at the end, before and after a repair."""
        for number, (call, handle) in enumerate(steps):
            try:
                yield self._do(number, call, handle, timeout_ms)
            except KafkaFailure as failure:
                yield "fenced" if is_fenced(failure) else failure.code
        yield from self._seen()
        opened = self._client.open_transactions(self._places)
        yield [
            (one.partition.number, one.start_offset, one.producer_epoch, one.state, one.hangs)
            for one in sorted(opened, key=lambda one: (one.partition, one.start_offset))
        ]
        for one in opened:
            self._client.finish(one, commit=False)
        yield from self._seen()
        for each in self._handles.values():
            each.close()
        self._client.close()

    def wait_for_a_timeout(self) -> Any:
        """Wait until nothing is open."""
        ends = self._ends
        self._until(lambda: ends(stable=True) == ends(stable=False))
        return ends(stable=True)

    def _do(self, number: int, call: str, handle: int, timeout_ms: int) -> Any:
        if call == "init" or handle not in self._handles:
            name = f"{self._topic}-{_IDS[handle]}"
            self._handles[handle] = self._client.producer(
                name, timeout_ms=timeout_ms, within_s=_WITHIN_S
            )
        if call == "wait":
            return self.wait_for_a_timeout()
        producer = self._handles[handle]
        if call == "begin":
            producer.begin()
            self._written[handle] = set()
            return None
        if call.startswith("send"):
            partition = int(call[-1])
            producer.send([Outgoing(self._topic, b"%d" % number, b"key", partition)])
            ends = producer.flush(_WITHIN_S)
            self._written[handle].add(partition)
            return ends[self._topic]
        if call != "init":
            before = sum(self._ends(stable=False))
            (producer.commit if call == "commit" else producer.abort)(_WITHIN_S)
            markers = len(self._written.pop(handle, ()))
            self._until(lambda: sum(self._ends(stable=False)) == before + markers)
        return None

    def _seen(self) -> Iterator[Any]:
        yield self._ends(stable=False), self._ends(stable=True)
        yield [(one.offset, one.value) for one in self._client.read(self._topic, 0)]
        stable = self._client.ends(self._places, stable=True)
        yield [
            self._client.has_record(place, offset)
            for place in self._places
            for offset in range(stable[place])
        ]

    def _ends(self, *, stable: bool) -> list[int]:
        found = self._client.ends(self._places, stable=stable)
        return [found[place] for place in self._places]

    def _until(self, holds: Callable[[], bool]) -> None:
        for _ in range(_TRIES):
            if holds():
                return
            self._wait(0.03)
        raise AssertionError("it does not come to rest")


def real(server: KafkaServer, steps: Sequence[Step], **given: Any) -> list[Any]:
    """The answers of a broker, for a topic of the story's own."""
    topic = server.create_topic(f"beside-{next(_numbers)}", partitions=2)
    client = ConfluentClient(server.address, {"linger.ms": 0}, MACHINE)
    return list(Story(client, topic, sleep).answers(steps, **given))


def simulated(steps: Sequence[Step], **given: Any) -> list[Any]:
    """The answers of a cluster to which nothing happens."""
    loop, process, found = Loop(), Process("p"), list[Any]()
    rates = Rates(refused=0, answer_lost=0, late=0, slow=0, others=0, until_us=0)
    network = Network(loop, Random(1), rates, lambda _: None)
    cluster = Cluster(network, Disk(NoWatcher()), "/target", lambda: None)
    cluster.limit_ms = 900_000
    cluster.create("topic", 2)

    def told() -> None:
        wait = partial(_pass, loop, process)
        found.extend(Story(SimKafkaClient(cluster), "topic", wait).answers(steps, **given))

    loop.spawn(process, told)
    loop.run(lambda: False, LIMIT_US)
    return found


def _pass(loop: Loop, process: Process, seconds: float) -> None:
    loop.sleep(process, round(seconds * 1_000_000))


@pytest.mark.parametrize("name", KNOWN)
def test_the_simulated_cluster_answers_known_steps_as_a_broker(
    broker: KafkaServer, name: str
) -> None:
    """Fencing, aborted and empty transactions, and what others hide."""
    assert simulated(KNOWN[name]) == real(broker, KNOWN[name])


def test_the_simulated_cluster_ends_a_transaction_that_takes_too_long(broker: KafkaServer) -> None:
    """It is aborted, and its producer fenced, though nobody took over; the next one goes on."""
    steps: list[Step] = [
        *(("init", 0), ("begin", 0), ("send to 0", 0), ("wait", 0), ("commit", 0), ("init", 1)),
        *(("begin", 1), ("send to 0", 1), ("commit", 1)),
    ]
    assert simulated(steps, timeout_ms=1_000) == real(broker, steps, timeout_ms=1_000)


def test_the_simulated_cluster_refuses_a_timeout_that_is_too_long(broker: KafkaServer) -> None:
    """A timeout above its limit."""
    steps: list[Step] = [("init", 0)]
    assert simulated(steps, timeout_ms=900_001) == real(broker, steps, timeout_ms=900_001)


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS)
def test_the_simulated_cluster_answers_as_a_broker(broker: KafkaServer, steps: list[Step]) -> None:
    """Every step has the same answer, whatever came before it."""
    assert simulated(steps) == real(broker, steps)
