"""Draws the state diagrams of docs/ARCHITECTURE.md as Mermaid text, from the transition tables.

The tables are those that the state machines use. ``python scripts/diagrams.py`` rewrites the text
between the page's markers; a test fails if the page and the tables differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weir.core.checkpoints.pending import PENDING_TRANSITIONS
from weir.core.job.stop_with_savepoint import STOP_TRANSITIONS
from weir.core.status import (
    JOB_STATUS_TRANSITIONS,
    OPERATOR_STATUS_TRANSITIONS,
    TASK_STATUS_TRANSITIONS,
)

PAGE = Path(__file__).resolve().parent.parent / "docs" / "ARCHITECTURE.md"

TABLES: dict[str, Mapping[Any, frozenset[Any]]] = {
    "job status": JOB_STATUS_TRANSITIONS,
    "task status": TASK_STATUS_TRANSITIONS,
    "operator status": OPERATOR_STATUS_TRANSITIONS,
    "pending checkpoint": PENDING_TRANSITIONS,
    "stop with savepoint": STOP_TRANSITIONS,
}


def mermaid(table: Mapping[Any, frozenset[Any]]) -> str:
    """One table as a Mermaid state diagram; states without transitions are final.

    The first state of the table is the initial state.
    """
    order = list(table)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {order[0].name}"]
    for state in order:
        lines += [
            f"    {state.name} --> {target.name}"
            for target in sorted(table[state], key=order.index)
        ]
        if not table[state]:
            lines.append(f"    {state.name} --> [*]")
    return "\n".join([*lines, "```"])


def drawn(page: str) -> str:
    """The page with every diagram redrawn."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        if not pattern.search(page):
            raise SystemExit(f"docs/ARCHITECTURE.md has no markers for the diagram {name!r}")
        page = pattern.sub(f"{begin}\n{mermaid(table)}\n{end}", page)
    return page


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text()))
