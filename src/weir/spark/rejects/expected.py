"""``kept``: the plan of a step with expectations (``weir/expectations.py``).

One projection adds a number whose bits are the rules that a row breaks. An observation counts rows
by rule, and collects what is set aside (``guard.py``); a filter drops rows, and raises for rules
that fail the job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from weir.core.graph import GraphStep
from weir.errors import PipelineError
from weir.expectations import Action, Expectations
from weir.spark.channels import event_time
from weir.spark.java import Jvm
from weir.spark.rejects.guard import (
    JSON_OPTIONS,
    GuardedStep,
    PlanParts,
    classes_of,
    reject_of,
    rule_count,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from weir.expectations import Rule

_BROKEN = "__weir_broken"
_REJECT = "__weir_reject"


def kept(
    jvm: Jvm, step: GraphStep, given: DataFrame, expected: Expectations, rows_max: int
) -> tuple[DataFrame, GuardedStep]:
    """The rows of the frame that keep the rules of the step.

    Raises ``PipelineError`` for a rule that calls a Python function.
    """
    parts = PlanParts(jvm)
    columns = [F.col("`" + name.replace("`", "``") + "`") for name in given.columns]
    broken = F.lit(0).cast("long")
    for number, (name, (_, rule)) in enumerate(expected.rules.items()):
        keeps = F.coalesce(_tried(parts, given, step, name, rule), F.lit(False))
        broken = broken.bitwiseOR(F.when(keeps, 0).otherwise(1 << number).cast("long"))
    frame = given.select(*columns, broken.alias(_BROKEN))

    def breaks(*actions: Action) -> Column:
        bits = sum(
            1 << number
            for number, (action, _) in enumerate(expected.rules.values())
            if action in actions
        )
        return F.col(_BROKEN).bitwiseAND(F.lit(bits)) != 0

    row = F.to_json(F.struct(*columns), JSON_OPTIONS)
    names = [
        (F.lit(1 << number), name, action)
        for number, (name, (action, _)) in enumerate(expected.rules.items())
    ]

    def said(*actions: Action) -> Column:
        found = [
            F.when(F.col(_BROKEN).bitwiseAND(bit) != 0, F.lit(repr(name)))
            for bit, name, action in names
            if action in actions
        ]
        return F.concat(F.lit("breaks "), F.concat_ws(", ", *found))

    counted = [
        F.count_if(F.col(_BROKEN).bitwiseAND(bit) != 0).alias(rule_count(number))
        for number, (bit, _, _) in enumerate(names)
    ]
    if expected.rejects:
        reject = F.when(breaks(Action.REJECT), reject_of(said(Action.REJECT), row))
        frame = frame.withColumn(_REJECT, reject)
        counted.append(
            parts.collected(frame._jdf.queryExecution().analyzed().output().last(), rows_max + 1)
        )
    name = f"weir-rejects-{step.operator_id}"
    frame = frame.observe(name, *counted)
    good = ~breaks(Action.DROP, Action.REJECT)
    if any(action is Action.FAIL for action, _ in expected.rules.values()):
        text = F.concat(F.lit(f"Step {step.name!r}: a row "), said(Action.FAIL), F.lit(": "), row)
        good = F.when(breaks(Action.FAIL), F.raise_error(text).cast("boolean")).otherwise(good)
    guarded = GuardedStep(
        step=step,
        observation=name,
        guards=(),
        event_time=event_time(given.schema),
        rules=tuple(expected.rules),
    )
    return frame.filter(good).select(*columns), guarded


def _tried(parts: PlanParts, given: DataFrame, step: GraphStep, name: str, rule: Rule) -> Column:
    """The condition of a rule; null if it raises."""
    condition = F.expr(rule) if isinstance(rule, str) else rule(given) if callable(rule) else rule
    plan = given.select(condition.cast("boolean").alias("rule"))._jdf.queryExecution().analyzed()
    expression = plan.projectList().head().child()
    if "PythonUDF" in classes_of(expression):
        raise PipelineError(
            f"The rule {name!r} of step {step.name!r} calls a Python function: call it in a step"
            " before, and make a rule of its value."
        )
    return parts.tried(expression)
