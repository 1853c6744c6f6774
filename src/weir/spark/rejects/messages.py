"""``messages``: what expressions of Spark raised that left their values in place of a message.

They are evaluated again, by themselves and without a job; what they raise is the message.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from weir.spark.failures import first_cause
from weir.spark.java import Jvm
from weir.spark.quiet import without_pyspark_log
from weir.spark.rejects.observation import JSON_OPTIONS, Guard
from weir.spark.rejects.parts import EXPRESSIONS, LOGICAL

_log = logging.getLogger(__name__)

#: For how many rows of a batch the message is found.
MESSAGES_MAX = 1000


def messages(jvm: Jvm, guard: Guard, texts: Sequence[str]) -> Mapping[str, str]:
    """What the guarded expressions raise for each of these values, which are JSON texts."""
    found = _evaluated(jvm, guard, texts[:MESSAGES_MAX]) if texts else {}
    return {text: found.get(text) or _fallback(guard, text) for text in texts}


def _evaluated(jvm: Jvm, guard: Guard, texts: Sequence[str]) -> Mapping[str, str]:
    """What the guarded expressions raise for each of these values."""
    found: dict[str, str] = {}
    try:
        struct, rows = _bound(jvm, guard), _rows(jvm, guard, texts)
    except Exception:
        _log.debug("An expression cannot be evaluated again.", exc_info=True)
        return found
    for text, row in zip(texts, rows, strict=True):
        try:
            with without_pyspark_log():
                struct.eval(row)
        except Exception as error:
            cause = first_cause(error)
            if "INTERNAL_ERROR" not in cause and "before eval" not in cause:
                found[text] = cause
    return found


def _bound(jvm: Jvm, guard: Guard) -> Any:
    """The expressions as one that can be evaluated for a row of their columns."""
    columns = jvm.seq(guard.columns)
    ids = jvm.sql_class(EXPRESSIONS + "NamedExpression").newExprId()
    named = jvm.sql_class(EXPRESSIONS + "Alias")(
        guard.struct, "made", ids, jvm.seq(()), jvm.none, jvm.seq(())
    )
    relation = jvm.sql_class(LOGICAL + "LocalRelation")(columns, jvm.seq(()), False, jvm.none)
    plan = jvm.sql_class(LOGICAL + "Project")(jvm.seq([named]), relation)
    optimizer = "org.apache.spark.sql.catalyst.optimizer."
    for rule in ("ReplaceExpressions", "ComputeCurrentTime"):
        plan = jvm.scala_object(optimizer + rule).apply(plan)
    body = plan.projectList().head().child()
    attributes = jvm.sql_class(EXPRESSIONS + "package$AttributeSeq")(columns)
    binding = jvm.sql_class(EXPRESSIONS + "BindReferences")
    return binding.bindReference(body, attributes, False)


def _rows(jvm: Jvm, guard: Guard, texts: Sequence[str]) -> list[Any]:
    """The values in Java, from their JSON texts."""
    kinds = [str(one.dataType().sql()) for one in guard.columns]
    schema = ", ".join(f"c{number} {kind}" for number, kind in enumerate(kinds)) or "c int"
    given = jvm.java_class("java.util.ArrayList")()
    for text in texts:
        given.add(text)
    strings = jvm.sql_class("Encoders").STRING()
    frame = DataFrame(jvm.java_session.createDataset(given, strings).toDF(), jvm.session)
    made = frame.select(F.from_json("value", schema, JSON_OPTIONS))
    data = made._jdf.queryExecution().optimizedPlan().data()
    width = max(1, len(kinds))
    return [data.apply(number).getStruct(0, width) for number in range(len(texts))]


def _fallback(guard: Guard, text: str) -> str:
    """What is known without the message: the expressions and their values."""
    values = json.loads(text)
    named = ", ".join(
        f"{one.name()} = {json.dumps(values.get(f'c{number}'))}"
        for number, one in enumerate(guard.columns)
    )
    return f"{str(guard.struct.sql())[:300]} raised for {named or 'no values'}"
