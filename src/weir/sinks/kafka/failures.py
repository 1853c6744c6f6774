"""Sentences for Kafka's errors, and of which kind they are.

*Final*: the same again however often it is tried: rights, credentials, a record that is too large.
*Passing*: a broker that is away or restarts; the commit is repeated, then by the restored job.
Everything that is not known to be final passes. What must be looked at by the sink itself is
*fenced*: another producer of the transactional id has begun, or the transaction has timed out.
"""

from __future__ import annotations

from weir.errors import SinkError, SinkMismatchError, StorageError, WeirError
from weir.sinks.kafka.client import KafkaFailure

#: The last stands for a fatal error that Python has lost: the client says only that there was one.
_FENCED = frozenset(("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "_FATAL"))
UNKNOWN_TOPIC = frozenset(
    ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID")
)
_CREDENTIALS = frozenset(("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED"))
_TOO_LARGE = frozenset(("MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG_SIZE"))
_UNFIT = frozenset(("INVALID_RECORD", "INVALID_TIMESTAMP", "_INVALID_ARG", "TOPIC_EXCEPTION"))


def is_fenced(failure: KafkaFailure) -> bool:
    """Whether the producer must not be used any more, since its epoch is not the newest."""
    return failure.code in _FENCED


def explained(failure: KafkaFailure, place: str, doing: str) -> WeirError:
    """The error for the user. ``doing`` completes "failed while"."""
    code, said = failure.code, f"({failure.code}: {failure.text})"
    seen = f"{said}, seen while {doing}"
    if code in UNKNOWN_TOPIC:
        return SinkError(
            f"A topic or partition of {place} does not exist {seen}: create it. Rows that were"
            " staged stay so, and are committed once it is there."
        )
    if failure.is_refusal:
        advice = (
            f"Kafka refuses {place} a right that it needs {seen}: grant it to the principal of the"
            " job, then run the job again."
        )
    elif code in _CREDENTIALS:
        advice = (
            f"Kafka refuses the credentials of {place} {seen}: check the security options in conf."
        )
    elif code == "INVALID_TRANSACTION_TIMEOUT":
        advice = (
            f"The option transaction.timeout.ms of {place} is greater than the broker's"
            f" transaction.max.timeout.ms {said}: lower it, or have the limit raised."
        )
    elif code in _TOO_LARGE:
        advice = (
            f"A record of {place} is larger than Kafka takes {seen}: raise the topic's"
            " max.message.bytes, and run the job again."
        )
    elif code in _UNFIT:
        advice = (
            f"Kafka does not take a record or an option of {place} {seen}: compare the topic's"
            " settings and the options in conf."
        )
    else:
        return StorageError(
            f"Kafka does not answer {place} as it should {seen}: check the brokers and the way to"
            " them. Rows that were staged stay so, and their commit is tried again."
        )
    return SinkMismatchError(advice)
