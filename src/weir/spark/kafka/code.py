"""What the code of a pipeline says of Kafka, before anything runs and without PySpark.

``weir.sources.kafka`` says what it needs. A function that reads or writes Kafka by hand has the
word ``"kafka"`` in it, or in a function or text that it names.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType

CONNECTOR = "spark-sql-kafka-0-10"
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
        declared = getattr(function, "artifacts", None)
        if declared is not None or "kafka" in texts_of(function):
            found |= dict.fromkeys((CONNECTOR, *(declared or ())))
    return tuple(found)


def texts_of(function: object) -> frozenset[str]:
    """The texts in a function's code, and those of global names that it uses."""
    own = getattr(function, "__func__", function)
    code = getattr(own, "__code__", None)
    if not isinstance(code, CodeType):
        return frozenset()
    codes = tuple(_with_inner(code))
    known = getattr(own, "__globals__", {})
    values = [*itertools.chain.from_iterable(one.co_consts for one in codes)]
    for name in itertools.chain.from_iterable(one.co_names for one in codes):
        value = known.get(name)
        called = getattr(value, "__code__", None)
        values += called.co_consts if isinstance(called, CodeType) else [value]
    return frozenset(value for value in values if isinstance(value, str))


def artifacts_in(file: Path) -> tuple[str, ...]:
    """The artifacts that the code of a file needs: the connector, if it says ``"kafka"``."""
    try:
        code = compile(file.read_bytes(), str(file), "exec")
    except (OSError, SyntaxError, ValueError):
        return ()
    return (CONNECTOR,) if any("kafka" in one.co_consts for one in _with_inner(code)) else ()


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _with_inner(inner)


def is_uncommitted(function: object) -> bool:
    """Whether a source's function reads Kafka and says nothing of the isolation level."""
    if hasattr(function, "artifacts"):
        return False
    texts = texts_of(function)
    return "kafka" in texts and ISOLATION not in texts
