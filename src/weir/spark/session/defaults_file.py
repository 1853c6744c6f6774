"""Settings from outside of the job: ``spark-defaults.conf``, or those of ``spark-submit``.

Spark's launcher reads the file before Java starts, so Weir has to know it too: a setting that Weir
passes replaces the options in the file, and Java does not start with the options of both.

``spark-submit`` starts Java first, and then this process, which finds that JVM by an environment
variable. Its properties have the options of the command, and the file's: the master above all.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from weir.spark.session.environment import spark_home

#: Java's properties: a key ends at the first blank, ``=`` or ``:`` that is not escaped.
_SETTING = re.compile(r"((?:\\.|[^\\\s=:])+)[ \t\f]*[=:\s]?[ \t\f]*(.*)", re.DOTALL)
_LINE_END = re.compile(r"\r\n|\r|\n")
#: A backslash that is not escaped itself.
_CONTINUES = re.compile(r"(?<!\\)(?:\\\\)*\\$")
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def is_submitted() -> bool:
    """Whether ``spark-submit`` started this process, and the JVM before it."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def read_submitted() -> dict[str, str]:
    """The ``spark.*`` settings of the JVM that ``spark-submit`` started."""
    from pyspark import SparkConf, SparkContext

    # It only connects: the JVM runs.
    SparkContext._ensure_initialized()
    return dict(SparkConf(_jvm=SparkContext._jvm).getAll())


def read_defaults_file() -> dict[str, str]:
    """The ``spark.*`` settings of the file in ``SPARK_CONF_DIR``, or else in Spark's ``conf``.

    Empty if there is no such file.
    """
    home = spark_home()
    configured = os.environ.get("SPARK_CONF_DIR") or (None if home is None else home / "conf")
    text = ""
    if configured is not None:
        # What Spark cannot read either, Spark reports.
        with contextlib.suppress(OSError):
            text = Path(configured, "spark-defaults.conf").read_text("utf-8", errors="replace")
    return read_settings(text)


def read_settings(text: str) -> dict[str, str]:
    """The ``spark.*`` settings in the text of such a file."""
    found = {}
    for line in _logical_lines(text):
        setting = _SETTING.match(line)
        if setting is not None:
            found[_unescaped(setting[1])] = _unescaped(setting[2]).strip()
    return {key: value for key, value in found.items() if key.startswith("spark.")}


def _logical_lines(text: str) -> Iterator[str]:
    """The lines that are no comments, each with those that continue it."""
    line = ""
    for part in _LINE_END.split(text):
        stripped = part.lstrip(" \t\f")
        if not line and stripped.startswith(("#", "!")):
            continue
        line += stripped
        if _CONTINUES.search(line):
            line = line[:-1]
        else:
            yield line
            line = ""
    yield line


def _unescaped(text: str) -> str:
    def unescape(match: re.Match[str]) -> str:
        return chr(int(match[1][1:], 16)) if len(match[1]) > 1 else _CONTROL.get(match[1], match[1])

    return _ESCAPED.sub(unescape, text)
