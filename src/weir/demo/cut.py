"""What a reader of the tables sees between two lives of the job: one cut through all of them.

A driver that is killed may have committed its newest checkpoint to some tables and not yet to others.
``weir.read_consistent`` finds the newest checkpoint that all of them show, and there they must agree with one another, not
just each with the end of the job: an anomaly is there exactly if its flight is, although two queries wrote the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import weir
from weir.demo.reference import anomalies_of
from weir.demo.verify import compare
from weir.errors import StorageError


@dataclass(frozen=True, kw_only=True)
class Cut:
    """What the tables showed at one moment."""

    #: The checkpoint and the rows of each table there, for the reader.
    text: str
    #: How the tables disagree, in a sentence; None if they agree.
    problem: str | None = None


def look(directory: Path, tables: Iterable[str]) -> Cut:
    """Read the tables ``directory/<name>`` at their newest common checkpoint, while nobody writes them."""
    try:
        cut = weir.read_consistent({name: str(directory / name) for name in tables})
    except StorageError:
        return Cut(text="no checkpoint is in all tables yet")
    rows = {name: cut.table(name).to_pyarrow_table() for name in cut.versions}
    counts = ", ".join(f"{name} {table.num_rows:,}" for name, table in rows.items())
    text = f"all tables at checkpoint {cut.checkpoint_id}: {counts}"
    expected = anomalies_of(rows["flights_clean"], rows["anomalies"])
    report = compare("anomalies", expected, rows["anomalies"])
    if report.exact:
        return Cut(text=text)
    return Cut(
        text=text,
        problem=f"At checkpoint {cut.checkpoint_id} the anomalies are not those of the flights: {report.missing} are"
        f" missing, {report.duplicates + report.unexpected} are too many.",
    )
