"""Kafka's errors as sentences: which are final, and which pass. Needs no broker."""

from __future__ import annotations

import pickle

import pytest

from weir.errors import SinkError, SinkMismatchError, StorageError
from weir.runtime.failures import is_fatal
from weir.sinks.kafka.client import KafkaFailure
from weir.sinks.kafka.confluent import _asked
from weir.sinks.kafka.failures import explained, is_fenced

KINDS = {
    "UNKNOWN_TOPIC_OR_PART": (SinkError, "does not exist"),
    "TOPIC_AUTHORIZATION_FAILED": (SinkMismatchError, "grant it to the principal"),
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": (SinkMismatchError, "a right that it needs"),
    "SASL_AUTHENTICATION_FAILED": (SinkMismatchError, "credentials"),
    "INVALID_TRANSACTION_TIMEOUT": (SinkMismatchError, "transaction.max.timeout.ms"),
    "MSG_SIZE_TOO_LARGE": (SinkMismatchError, "max.message.bytes"),
    "INVALID_RECORD": (SinkMismatchError, "settings"),
    "_TIMED_OUT": (StorageError, "tried again"),
    "_TRANSPORT": (StorageError, "tried again"),
    "an error of tomorrow": (StorageError, "tried again"),
}


@pytest.mark.parametrize("code", KINDS)
def test_each_error_is_a_sentence_of_its_kind(code: str) -> None:
    """With the sink, what it was doing, and Kafka's own words."""
    kind, advice = KINDS[code]
    error = explained(KafkaFailure(code, "said so"), "KafkaTopic('t')", "committing checkpoint 7")
    assert type(error) is kind
    for part in ("KafkaTopic('t')", f"({code}: said so)", advice):
        assert part in str(error)
    assert is_fatal(error) == (kind is SinkMismatchError)


def test_a_fenced_producer_differs_from_a_broker_that_is_away() -> None:
    """Whether somebody has taken over is not in the error."""
    assert is_fenced(KafkaFailure("_FENCED", ""))
    assert not is_fenced(KafkaFailure("_TIMED_OUT", ""))
    copy = pickle.loads(pickle.dumps(KafkaFailure("_FENCED", "by a newer instance")))
    assert (copy.code, str(copy)) == ("_FENCED", "_FENCED: by a newer instance")


def test_a_failure_in_which_librdkafka_loses_the_error_is_a_failure_all_the_same() -> None:
    """Python says so if a report fails because another has."""

    def call() -> None:
        raise SystemError("flush returned NULL without setting an exception")

    with pytest.raises(KafkaFailure, match="returned NULL") as failed:
        _asked(call)
    assert is_fenced(failed.value)
