"""``weir repair-kafka``: shows the open transactions of topics, and ends those that hang."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from weir.cli.tables import make_table
from weir.errors import ConfigurationError
from weir.kernel import MACHINE
from weir.sinks.kafka.confluent import ConfluentClient
from weir.sinks.kafka.repair import Found, finish, look


class Repair:
    """The open transactions of a sink's topics, as of its making."""

    def __init__(
        self, servers: str, ledger: str, topics: Sequence[str], conf: dict[str, str]
    ) -> None:
        self._client = ConfluentClient(servers, conf, MACHINE)
        self._ledger = ledger
        self._topics = list(topics)
        self.found = look(self._client, ledger, topics)

    @property
    def hanging(self) -> list[Found]:
        """Those that no coordinator will end."""
        return [each for each in self.found if each.commit is not None]

    @property
    def of_others(self) -> list[Found]:
        """Those of other writers that no coordinator will end."""
        return [each for each in self.found if each.transaction.hangs and each.commit is None]

    def finish(self) -> list[Found]:
        """End what hangs; return what still does."""
        finish(self._client, self.found)
        self.found = look(self._client, self._ledger, self._topics)
        return self.hanging


def transactions_table(found: Iterable[Found]) -> Table:
    """One row for each open transaction and partition."""
    table = make_table(
        "topic", "partition", "since offset", "producer", "epoch", "transactional id", "state", ""
    )
    for each in found:
        transaction = each.transaction
        table.add_row(
            Text(transaction.partition.topic),
            str(transaction.partition.number),
            str(transaction.start_offset),
            str(transaction.producer_id),
            str(transaction.producer_epoch),
            Text(transaction.transactional_id or "-"),
            transaction.state or "-",
            _fate(each),
        )
    return table


def _fate(found: Found) -> str:
    if found.commit is not None:
        return "hangs: to commit" if found.commit else "hangs: to abort"
    return "hangs, of another writer" if found.transaction.hangs else "under way"


def options_in(file: str | None) -> dict[str, str]:
    """The options in a file, ``name=value`` a line. Raises ``ConfigurationError``."""
    options = {}
    try:
        lines = [] if file is None else Path(file).read_text().splitlines()
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read ({error.strerror}).") from error
    for number, line in enumerate(map(str.strip, lines), start=1):
        name, equals, value = line.partition("=")
        if line and not line.startswith("#"):
            if not equals:
                raise ConfigurationError(f"Line {number} of {file} is not of the form name=value.")
            options[name.strip()] = value.strip()
    return options
