"""What the code of a pipeline says of Kafka, before anything runs and without PySpark.

``weir.sources.kafka`` says what it needs. A function that reads or writes Kafka by hand calls
``format("kafka")``, or a function that does, or names a text that is ``"kafka"``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType

from weir.sources.kafka_connector import KafkaSource

CONNECTOR = "spark-sql-kafka-0-10"
#: What code that reads or writes Kafka by hand has in it.
_BY_HAND = {"kafka", "format"}
#: The option of a source that names its isolation level.
ISOLATION = "kafka.isolation.level"
#: What a source that does not say its isolation level does.
UNCOMMITTED = (
    "reads Kafka with isolation level read_uncommitted, Spark's default: also rows of transactions"
    " that are aborted. Set the option kafka.isolation.level to read_committed, or to"
    " read_uncommitted if no producer uses transactions."
)


def artifacts_of(functions: Iterable[object]) -> tuple[str, ...]:
    """The artifacts of Spark that these functions of a pipeline need, by name."""
    found: dict[str, None] = {}
    for function in functions:
        if isinstance(function, KafkaSource):
            found |= dict.fromkeys((CONNECTOR, *function.artifacts))
        elif _words_of(function) >= _BY_HAND:
            found[CONNECTOR] = None
    return tuple(found)


def artifacts_in(file: Path) -> tuple[str, ...]:
    """The artifacts that the code of a file needs."""
    try:
        code = compile(file.read_bytes(), str(file), "exec")
    except (OSError, SyntaxError, ValueError):
        return ()
    return (CONNECTOR,) if set(_words(code)) >= _BY_HAND else ()


def is_uncommitted(function: object) -> bool:
    """Whether a source's function reads Kafka by hand and says nothing of the isolation level."""
    words = set() if isinstance(function, KafkaSource) else _words_of(function)
    return words >= _BY_HAND and ISOLATION not in words


def _words_of(function: object) -> set[str]:
    """The texts and names in a function's code, and in that of functions that it names."""
    own = function.func if isinstance(function, partial) else function
    if not hasattr(own, "__code__"):
        own = vars(type(own)).get("__call__")
    code = getattr(own, "__code__", None)
    if not isinstance(code, CodeType):
        return set()
    found = set(_words(code))
    known = getattr(own, "__globals__", {})
    for value in [known[name] for name in found if name in known]:
        called = getattr(value, "__code__", None)
        if isinstance(called, CodeType):
            found |= set(_words(called))
        elif isinstance(value, str):
            found.add(value)
    return found


def _words(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _words(value)
        elif isinstance(value, str):
            yield value
