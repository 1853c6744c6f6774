"""``Wrapper``: a user's Python function in Spark's workers, which pass their rows to it.

It comes as PySpark has pickled it, and is unpickled in the worker, where its broadcasts are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from typing import Any, Self


def pickler() -> Any:
    """What PySpark pickles functions with."""
    from pyspark.serializers import CloudPickleSerializer

    made: Any = CloudPickleSerializer
    return made()


@dataclass(frozen=True, kw_only=True)
class Wrapper:
    """A wrapper; ``around`` makes it complete."""

    command: bytes = b""

    def around(self, command: bytes) -> Self:
        """The wrapper of this function, pickled with its type."""
        return replace(self, command=command)

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The user's function."""
        from pyspark.worker_util import read_command

        # Older releases read it from a stream only, behind its length.
        stream = BytesIO(len(self.command).to_bytes(4, "big") + self.command)
        function: Callable[..., Any] = read_command(pickler(), stream)[0]
        return function
