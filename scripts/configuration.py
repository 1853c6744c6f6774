"""Writes docs/CONFIGURATION.md from the table of configuration keys.

``python scripts/configuration.py`` rewrites the page; a test fails if page and table differ.
"""

from __future__ import annotations

import re
from pathlib import Path

from weir.config import describe_options

PAGE = Path(__file__).resolve().parent.parent / "docs" / "CONFIGURATION.md"

HEAD = """# Configuration

Keys are Flink's where Flink has them; `spark.*` keys go to the Spark session. Later ones win:
`weir.Job(conf={...})`, a file (`weir run --config FILE`, lines of `key: value`), `--conf
KEY=VALUE`. A key that does not exist, a value that cannot be read, and values at odds with each
other are refused before anything runs. Defaults are Flink's; where one differs, its description has
Flink's.

<!-- Written by scripts/configuration.py from the table that is read. -->

| key | values | default | what it does |
| --- | --- | --- | --- |
"""


def _code(text: str) -> str:
    """The text with its quoted words as Markdown code."""
    return re.sub(r"(?<!\w)'([^']+)'", r"`\1`", text)


def page() -> str:
    """The whole page, as Markdown."""
    rows = (
        f"| `{option.key}` | {_code(option.type.expectation)} | `{option.default}` |"
        f" {_code(option.description)} |"
        for option in describe_options()
    )
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
