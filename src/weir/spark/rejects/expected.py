"""``kept``: the plan of a step with expectations (``weir/expectations.py``).

One projection adds a number whose bits are the rules that a row breaks. An observation counts rows
by rule, and collects what is set aside (``observation.py``); a filter drops rows, and raises for
rules that fail the job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from weir.core.graph import GraphStep
from weir.errors import PipelineError
from weir.expectations import Action, Expectations
from weir.spark.channels import event_time
from weir.spark.failures import first_cause
from weir.spark.java import Jvm
from weir.spark.quiet import without_pyspark_log
from weir.spark.rejects.observation import (
    JSON_OPTIONS,
    GuardedStep,
    collected,
    observation_of,
    reject_of,
    rule_count,
)
from weir.spark.rejects.parts import PlanParts, classes_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from weir.expectations import Rule

_BROKEN = "__weir_broken"
_REJECT = "__weir_reject"


def kept(
    jvm: Jvm, step: GraphStep, given: DataFrame, expected: Expectations, rows_max: int
) -> tuple[DataFrame, GuardedStep]:
    """The rows of the frame that keep the rules of the step.

    Raises ``PipelineError`` for a rule that calls a Python function, or that is no condition.
    """
    parts = PlanParts(jvm)
    columns = [F.col("`" + name.replace("`", "``") + "`") for name in given.columns]
    bits = {name: 1 << number for number, name in enumerate(expected.rules)}
    broken = F.lit(0).cast("long")
    for name, (_, rule) in expected.rules.items():
        keeps = F.coalesce(_tried(parts, given, step, name, rule), F.lit(False))
        broken = broken.bitwiseOR(F.when(keeps, 0).otherwise(bits[name]).cast("long"))
    frame = given.select(*columns, broken.alias(_BROKEN))

    def rules(*actions: Action) -> list[str]:
        return [name for name, (action, _) in expected.rules.items() if action in actions]

    def breaks(*names: str) -> Column:
        return F.col(_BROKEN).bitwiseAND(F.lit(sum(bits[name] for name in names))) != 0

    def said(*names: str) -> Column:
        found = [F.when(breaks(name), F.lit(repr(name))) for name in names]
        return F.concat(F.lit("breaks "), F.concat_ws(", ", *found))

    row = F.to_json(F.struct(*columns), JSON_OPTIONS)
    observed = [
        F.count_if(breaks(name)).alias(rule_count(number))
        for number, name in enumerate(expected.rules)
    ]
    if rejecting := rules(Action.REJECT):
        reject = F.when(breaks(*rejecting), reject_of(parts, said(*rejecting), row))
        frame = frame.withColumn(_REJECT, reject)
        column = frame._jdf.queryExecution().analyzed().output().last()
        observed.append(collected(parts, column, rows_max))
    frame = frame.observe(observation_of(step), *observed)
    good = ~breaks(*rules(Action.DROP, Action.REJECT))
    if failing := rules(Action.FAIL):
        text = F.concat(F.lit(f"Step {step.name!r}: a row "), said(*failing), F.lit(": "), row)
        good = F.when(breaks(*failing), F.raise_error(text).cast("boolean")).otherwise(good)
    guarded = GuardedStep(
        step=step,
        event_time=event_time(given.schema),
        observation=observation_of(step),
        rules=tuple(expected.rules),
    )
    return frame.filter(good).select(*columns), guarded


def _tried(parts: PlanParts, given: DataFrame, step: GraphStep, name: str, rule: Rule) -> Column:
    """The condition of a rule; null if it raises."""
    try:
        with without_pyspark_log():
            said = F.expr(rule) if isinstance(rule, str) else rule
            condition = said(given) if callable(said) else said
            made = given.select(condition.cast("boolean").alias("rule"))
            plan = made._jdf.queryExecution().analyzed()
    except Exception as error:
        raise PipelineError(
            f"The rule {name!r} of step {step.name!r} is not a condition of the step's input"
            f" ({first_cause(error).rstrip(';')}): correct it. The input has the columns"
            f" {', '.join(given.columns)}."
        ) from error
    expression = plan.projectList().head().child()
    if "PythonUDF" in classes_of(expression):
        raise PipelineError(
            f"The rule {name!r} of step {step.name!r} calls a Python function: call it in a step"
            " before, and make a rule of its value."
        )
    return parts.tried(expression)
