"""Uses a Spark session that the process already has, as a notebook does, and changes little in it.

- What exact checkpoints need is set if the session does not say otherwise, and said in a line: it
  holds for queries that start from then on. A session that says otherwise is refused, by the key.
- What the job's own configuration asks for is set as far as a running session can change, and the
  rest is said.
- Weir's defaults are set only where the session has no value. What would change how the session
  writes files (``weir.fast-working-directory``) is left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException

from weir.errors import ConfigurationError
from weir.spark.session.settings import DEFAULTS, REQUIRED, RETAINED, RETAINED_MIN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Settings that a running session can change, but for a few that Spark reads only once.
_SQL = "spark.sql."


def adopt(
    session: SparkSession,
    settings: Mapping[str, str],
    given: frozenset[str],
    note: Callable[[str], None],
) -> None:
    """Give the session the settings of a job, of which the user gave some.

    Raises ``ConfigurationError`` for a value of the session that a job cannot have.
    """
    found = {key: _value(session, key) for key in (*REQUIRED, RETAINED)}
    for key, value in REQUIRED.items():
        if found[key] is not None and str(found[key]).lower() != value.lower():
            raise _refusal(key, str(found[key]), f"exact checkpoints need {value!r}")
    retained = str(found[RETAINED] or "")
    if retained.isdecimal() and int(retained) < RETAINED_MIN and RETAINED not in given:
        raise _refusal(
            RETAINED, retained, f"a checkpoint needs files of up to {RETAINED_MIN} batches"
        )
    missing = [key for key in REQUIRED if found[key] is None]
    for key in missing:
        session.conf.set(key, REQUIRED[key])
    if missing:
        note(
            "The Spark session of this process has got the settings of exact checkpoints:"
            f" {', '.join(f'{key}={REQUIRED[key]}' for key in missing)}"
        )
    for key in sorted(given & settings.keys()):
        _set_given(session, key, settings[key], note)
    for key in DEFAULTS.keys() - given:
        if key.startswith(_SQL) and _value(session, key) is None:
            session.conf.set(key, settings[key])


def _set_given(session: SparkSession, key: str, value: str, note: Callable[[str], None]) -> None:
    if key.startswith(_SQL):
        # It fails for what Spark reads only once.
        with contextlib.suppress(AnalysisException):
            session.conf.set(key, value)
            return
    if session.sparkContext.getConf().get(key) != value:
        # Without the values, which may be secret.
        note(
            f"The Spark session of this process keeps its own {key}, since that cannot change while"
            " it runs: stop it first (spark.stop()) to use the job's value."
        )


def _value(session: SparkSession, key: str) -> str | None:
    """The value that the session was given, None for Spark's default."""
    state: Any = session._jsparkSession.sessionState().conf()
    return str(session.conf.get(key)) if state.contains(key) else None


def _refusal(key: str, has: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"The Spark session of this process has {key}={has}, but {why}: set it there before the"
        " job starts, or stop the session (spark.stop()), and the job makes one of its own."
    )
