"""What the JVM writes to standard error, without what is no news.

Java warns at each start that Spark uses an incubating module, which no option can silence. So the
JVM gets a pipe as its standard error, and a thread passes on all other lines as they come. The
thread ends with the JVM and the processes that it has started. If this process is killed, what the
JVM would say about that goes nowhere, and not between the lines of the next driver.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

_STDERR = 2
#: How lines begin that are left out.
_NOISE = (b"WARNING: Using incubator modules: ",)
_CHUNK = 64 * 1024
#: How long a start that failed waits for the JVM's last words, in seconds.
_LAST_WORDS_S = 1.0


@contextlib.contextmanager
def filtered_errors() -> Iterator[None]:
    """What is started inside, by any thread, writes its errors through the filter."""
    try:
        shown = os.dup(_STDERR)
    except OSError:
        # Closed: nobody reads it.
        yield
        return
    reading, writing = os.pipe()
    os.dup2(writing, _STDERR)
    os.close(writing)
    reader = threading.Thread(
        target=_pass_on, args=(reading, shown), name="weir-jvm-errors", daemon=True
    )
    reader.start()
    try:
        yield
    except BaseException:
        os.dup2(shown, _STDERR)
        reader.join(_LAST_WORDS_S)
        raise
    os.dup2(shown, _STDERR)


def _pass_on(reading: int, shown: int) -> None:
    rest = b""
    while data := os.read(reading, _CHUNK):
        *lines, rest = (rest + data).split(b"\n")
        told = b"".join(line + b"\n" for line in lines if not line.startswith(_NOISE))
        if rest and not _may_be_noise(rest):
            told, rest = told + rest, b""
        _write(shown, told)
    _write(shown, b"" if rest.startswith(_NOISE) else rest)
    os.close(reading)
    os.close(shown)


def _may_be_noise(start: bytes) -> bool:
    return any(start.startswith(noise[: len(start)]) for noise in _NOISE)


def _write(shown: int, data: bytes) -> None:
    # A full disk or a reader that is gone does not stop the JVM.
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(shown, data) :]
