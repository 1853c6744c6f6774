"""What happened in a run, line by line: a digest of all lines, and the newest lines to read."""

from __future__ import annotations

import hashlib
from collections import deque
from pathlib import Path

_KEPT_LINES = 2_000


class Story:
    """Lines with their virtual time and process.

    Lines name the current directory ``.``: each run of a user's pipeline has another.
    """

    def __init__(self) -> None:
        self._here = str(Path.cwd())
        self._digest = hashlib.blake2b(digest_size=16)
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)

    def tell(self, now_us: int, who: str, what: str) -> None:
        """Add a line."""
        line = f"{now_us / 1_000:12.3f} {who:>4} {what.replace(self._here, '.')}"
        self._lines.append(line)
        self._digest.update(line.encode())

    @property
    def digest(self) -> str:
        """The digest of all lines: equal for equal runs, and practically never otherwise."""
        return self._digest.hexdigest()

    def lines(self) -> list[str]:
        """The newest lines, oldest first."""
        return list(self._lines)
