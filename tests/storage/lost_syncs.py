"""An fsync that fails once, as Linux reports a lost write: the file's next sync succeeds."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest


class LostSyncs:
    """Fails the first ``times`` syncs of paths that ``matches``; records every synced path."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, matches: Callable[[str], bool], *, times: int = 1
    ) -> None:
        self.lost: list[str] = []
        self.synced: list[str] = []
        real = os.fsync

        def fsync(descriptor: int) -> None:
            path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
            if len(self.lost) < times and matches(path):
                self.lost.append(path)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            self.synced.append(path)
            real(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)
