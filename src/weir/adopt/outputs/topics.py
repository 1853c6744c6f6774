"""Kafka topics: published exactly once where confluent-kafka is installed, as ``KafkaTopic`` does.

Spark's options are those of Java's client, under ``kafka.``. Most of them mean the same to
librdkafka; where one has no counterpart, Spark's batch writer is used, at least once, and it is
said.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any

from weir.adopt.outputs.calls import written
from weir.adopt.outputs.request import Chosen, Request
from weir.sinks.kafka.sink import KafkaTopic

_PREFIX = "kafka."
#: Options with the same name and meaning.
_SAME = frozenset(
    (
        *("client.id", "security.protocol", "sasl.mechanism", "sasl.kerberos.service.name"),
        *("compression.type", "linger.ms", "batch.size", "request.timeout.ms", "retries"),
        *("delivery.timeout.ms", "transaction.timeout.ms", "metadata.max.age.ms"),
        *("ssl.endpoint.identification.algorithm", "ssl.key.password"),
    )
)
#: Options that a transaction sets itself, or that are about memory.
_NO_EFFECT = frozenset(
    ("acks", "enable.idempotence", "buffer.memory", "max.block.ms", "retry.backoff.ms")
)
_NO_EFFECT_OF_SPARK = frozenset(("includeheaders",))
_LOGIN = re.compile(
    r"\A\s*\S*\.(?:Plain|Scram)LoginModule\s+required\s+username=\"([^\"]*)\""
    r"\s+password=\"([^\"]*)\"\s*;\s*\Z"
)


class ChangesTopic(KafkaTopic):
    """Publishes each change of a row, as Spark's sink does in update and complete mode."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.takes_updates = True


def topic(request: Request, given: str) -> Chosen:
    """A topic, or that which each row names."""
    request.check_not_partitioned("format 'kafka'")
    options = request.options
    servers = options.pop(f"{_PREFIX}bootstrap.servers", None)
    name = options.pop("topic", None)
    if servers is None:
        raise request.refused("format 'kafka' needs the option 'kafka.bootstrap.servers'.")
    if find_spec("confluent_kafka") is None:
        sink, says = written(request, given)
        why = "confluent-kafka, with which Weir publishes exactly once, is not installed here."
        return sink, (request.said(f"{why} (pip install 'weir-spark[kafka]')"), *says)
    conf, unknown = _librdkafka(options)
    if unknown is not None:
        sink, says = written(request, given)
        why = f"the option {unknown!r} is known to Java's client only."
        return sink, (request.said(f"it would be published exactly once, but {why}"), *says)
    ignored = {
        option
        for option in options
        if option in _NO_EFFECT_OF_SPARK or option.removeprefix(_PREFIX) in _NO_EFFECT
    }
    kind = ChangesTopic if request.updates else KafkaTopic
    sink = kind(name, servers=servers, staging=request.directory, conf=conf)
    said = [
        request.said(
            "rows are published once their checkpoint is complete, in one transaction: readers with"
            " isolation.level=read_committed see each once."
        ),
        *request.without_effect(ignored),
    ]
    if request.is_complete:
        said.append(request.said("the rows that changed are written, not the whole result."))
    return sink, tuple(said)


def _librdkafka(options: dict[str, str]) -> tuple[dict[str, str], str | None]:
    """The options as librdkafka has them, and the first that it has not."""
    conf: dict[str, str] = {}
    for option, value in options.items():
        name = option.removeprefix(_PREFIX)
        if option in _NO_EFFECT_OF_SPARK or name in _NO_EFFECT:
            continue
        if option == name:
            return conf, option
        login = _LOGIN.match(value) if name == "sasl.jaas.config" else None
        if name in _SAME:
            conf[name] = value
        elif name == "max.request.size":
            conf["message.max.bytes"] = value
        elif login is not None:
            conf["sasl.username"], conf["sasl.password"] = login.groups()
        elif name == "ssl.truststore.type" and value.upper() == "PEM":
            continue
        elif (
            name == "ssl.truststore.location"
            and options.get(f"{_PREFIX}ssl.truststore.type", "").upper() == "PEM"
        ):
            conf["ssl.ca.location"] = value
        else:
            return conf, option
    return conf, None
