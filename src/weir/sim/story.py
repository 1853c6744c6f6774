"""What happened in a run, line by line: a digest of all of it, and the newest lines for people."""

from __future__ import annotations

import hashlib
from collections import deque

_KEPT_LINES = 2_000


class Story:
    """Lines with their virtual time and process."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)

    def tell(self, now_us: int, who: str, what: str) -> None:
        """Add a line."""
        line = f"{now_us / 1_000:12.3f} {who:>4} {what}"
        self._lines.append(line)
        self._digest.update(line.encode())

    @property
    def digest(self) -> str:
        """The same for two runs if, and almost only if, they went the same way."""
        return self._digest.hexdigest()

    def lines(self, newest: int = _KEPT_LINES) -> list[str]:
        """The newest lines, oldest first."""
        return list(self._lines)[-newest:]
