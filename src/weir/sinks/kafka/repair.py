"""``weir repair-kafka``: decides how transactions that hang end, and ends them.

The broker had decided to commit or to abort such a transaction, and has lost the markers of some
partitions. What those that were not lost say counts, since readers may have seen them. The entry in
the ledger is the last record of its transaction, and says how far its rows go in each partition:

1. Readers see an entry of the ledger that goes beyond the first record that hangs in a partition of
   the target: that epoch is committed, and so must these records be. The job will not write them
   again.
2. The entry hangs as well. If a partition that does not hang shows the last row of the entry, the
   transaction was committed, and is committed everywhere.
3. Otherwise nobody has seen any of it: it is aborted everywhere, and the job's next start writes
   the epoch from its staged files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from weir.errors import SinkError, StorageError
from weir.sinks.kafka.client import Ends, KafkaClient, KafkaFailure, OpenTransaction, Partition
from weir.sinks.kafka.ledger import LedgerEntry, ends_of
from weir.storage.records import decoded

_OURS = "weir-"


@dataclass(frozen=True, kw_only=True)
class Found:
    """An open transaction in a partition, and how it is to end there."""

    transaction: OpenTransaction
    #: None if it is left alone.
    commit: bool | None


def advice(transaction: OpenTransaction) -> str:
    """What to do about a transaction of another writer that hangs, as a sentence."""
    where, name = transaction.partition, transaction.transactional_id
    return (
        f"The transaction of {'a writer that nobody knows' if name is None else repr(name)}"
        f" (producer {transaction.producer_id}) hangs in {where}: it has no end there, none will"
        f" come, and readers of committed records wait at offset {transaction.start_offset}. It is"
        " not of KafkaTopic, so only its owner knows whether it was committed; to abort it:"
        f" kafka-transactions.sh --bootstrap-server HOST:PORT abort --topic {where.topic}"
        f" --partition {where.number} --start-offset {transaction.start_offset}"
    )


def look(client: KafkaClient, ledger: str, topics: Collection[str]) -> list[Found]:
    """The open transactions in a sink's ledger and topics, in the order of their partitions.

    Raises ``SinkError`` for a topic that does not exist, or if it cannot be decided, and
    ``StorageError`` if Kafka does not answer.
    """
    try:
        return _look(client, ledger, topics)
    except KafkaFailure as failure:
        raise StorageError(f"The topics cannot be looked at ({failure}).") from failure


def finish(client: KafkaClient, found: Iterable[Found]) -> None:
    """End what hangs. Raises ``StorageError``; then look again.

    The entries in the ledger come last: as long as one hangs, the sink writes nothing.
    """
    for each in found:
        if each.commit is None:
            continue
        transaction = each.transaction
        try:
            client.finish(transaction, commit=each.commit)
        except KafkaFailure as failure:
            raise StorageError(
                f"The transaction of producer {transaction.producer_id} in {transaction.partition}"
                f" was not ended ({failure}): run the command again."
            ) from failure


def _look(client: KafkaClient, ledger: str, topics: Collection[str]) -> list[Found]:
    names = [*(name for name in dict.fromkeys(topics) if name != ledger), ledger]
    known = client.topics(names)
    if missing := [name for name in names if name not in known]:
        raise SinkError(f"The topic {missing[0]!r} does not exist there: check its name.")
    partitions = [
        Partition(name, number) for name in names for number in range(known[name].partitions)
    ]
    opened = client.open_transactions(partitions)
    opened.sort(key=lambda each: (partitions.index(each.partition), each.start_offset))
    hanging = [each for each in opened if each.hangs]
    seen = ends_of(decoded(each.value or b"", LedgerEntry) for each in client.read(ledger, 0))
    in_ledger = {each.producer_id: each for each in hanging if each.partition.topic == ledger}
    whole = {
        producer: _was_committed(client, entry, opened, seen)
        for producer, entry in in_ledger.items()
    }
    found = []
    for each in opened:
        commit: bool | None = None
        if each in hanging and each.producer_id in whole:
            commit = whole[each.producer_id]
        elif each in hanging and (each.transactional_id or "").startswith(_OURS):
            commit = seen.get(each.partition.topic, {}).get(each.partition.number, 0) > (
                each.start_offset
            )
        found.append(Found(transaction=each, commit=commit))
    return found


def _was_committed(
    client: KafkaClient, entry: OpenTransaction, opened: Iterable[OpenTransaction], seen: Ends
) -> bool:
    """Whether a partition shows rows of the transaction whose entry hangs."""
    record = client.written(entry.partition, entry.start_offset)
    if record is None:
        return False
    same = {each.partition for each in opened if each.producer_id == entry.producer_id}
    shown: set[bool] = set()
    for topic, ends in decoded(record.value or b"", LedgerEntry).ends.items():
        for number, end in ends.items():
            partition = Partition(topic, number)
            if end <= seen.get(topic, {}).get(number, 0) or partition in same:
                continue
            if client.ends([partition], stable=True)[partition] < end:
                raise SinkError(_hidden([each for each in opened if each.partition == partition]))
            shown.add(client.has_record(partition, end - 1))
    if len(shown) > 1:
        raise SinkError(
            f"The transaction of producer {entry.producer_id} was committed in some partitions and"
            " aborted in others: nothing was changed. Compare the topics with the job's input."
        )
    return shown == {True}


def _hidden(others: Iterable[OpenTransaction]) -> str:
    """Why it cannot be seen how a transaction ended in the partition of these."""
    for other in others:
        if other.hangs:
            return (
                "It cannot be seen how the job's transaction ended, and nothing was changed."
                f" {advice(other)}. Then run the command again."
            )
    names = ", ".join(repr(each.transactional_id) for each in others) or "they end now"
    return (
        f"It cannot be seen yet how the job's transaction ended, since others are under way"
        f" ({names}): run the command again when they are over, at the latest after their"
        " transaction.timeout.ms."
    )
