"""``weir.expect``: rules that rows are expected to keep, as the function of a step."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from weir.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    Rule: TypeAlias = str | Column | Callable[[DataFrame], Column]

#: Rules of one step: which of them a row breaks is one number of 63 bits.
RULES_MAX = 63


class Action(enum.Enum):
    """What becomes of a row that breaks a rule."""

    WARN = "warn"
    DROP = "drop"
    REJECT = "reject"
    FAIL = "fail"


@dataclass(frozen=True)
class Expectations:
    """The function of a step that passes its rows on, as far as they keep its rules."""

    #: By name, in the order in which they are counted.
    rules: Mapping[str, tuple[Action, Rule]]

    @property
    def rejects(self) -> bool:
        """Whether it may set rows aside."""
        return any(action is Action.REJECT for action, _ in self.rules.values())

    def __call__(self, frame: DataFrame) -> DataFrame:
        """Never called: Weir plans such a step itself."""
        raise PipelineError(
            "Pass weir.expect(...) to transform as its function, and do not call it."
        )


def expect(
    *,
    warn: Mapping[str, Rule] | None = None,
    drop: Mapping[str, Rule] | None = None,
    reject: Mapping[str, Rule] | None = None,
    fail: Mapping[str, Rule] | None = None,
) -> Expectations:
    """Rules as the function of a step: ``orders.transform("valid", weir.expect(...))``.

    Each has a name and a condition, in SQL, as a ``Column``, or as a function from the step's frame
    to a ``Column``. A row keeps a rule if the condition is true: not if it is false or null, or
    raises. All rows that break a rule are counted. Those that break one of ``warn`` go on, those of
    ``drop`` do not, and those of ``reject`` go to the step's ``on_error``. A row that breaks a rule
    of ``fail`` fails the job.

    Raises ``PipelineError`` if there are no rules or too many, or two have one name.
    """
    given = {Action.WARN: warn, Action.DROP: drop, Action.REJECT: reject, Action.FAIL: fail}
    rules: dict[str, tuple[Action, Rule]] = {}
    for action, named in given.items():
        for name, rule in (named or {}).items():
            if name in rules:
                raise PipelineError(
                    f"weir.expect has two rules named {name!r}: rows are counted by the name, so"
                    " give each its own."
                )
            rules[name] = action, rule
    if not 0 < len(rules) <= RULES_MAX:
        raise PipelineError(
            f"weir.expect has {len(rules)} rules: give it 1 to {RULES_MAX}, as in"
            " weir.expect(drop={'positive': 'amount > 0'})."
        )
    return Expectations(rules)
