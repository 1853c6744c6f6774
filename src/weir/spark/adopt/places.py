"""Where in the user's code a call comes from."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from weir.runtime.failures import Frame
from weir.spark.adopt.query import Place


class Places:
    """Finds lines of one script and of the modules that it uses."""

    def __init__(self, script: str) -> None:
        """``script`` is the script's path as given on the command line."""
        self._script = script
        self._path = str(Path(script).resolve())

    def of_caller(self) -> Place:
        """The innermost line of the user's code that led here."""
        frame = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            found = Frame(file=file, line=frame.f_lineno, function=frame.f_code.co_name)
            if found.is_the_users:
                return Place(self._shown(file), frame.f_lineno)
            # The type says that every frame has a caller.
            frame = frame.f_back  # type: ignore[assignment]
        return Place(self._script, 1)

    def _shown(self, file: str) -> str:
        if str(Path(file).resolve()) == self._path:
            return self._script
        near = os.path.relpath(file)
        return file if near.startswith(os.pardir) else near
