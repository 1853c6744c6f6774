"""Notices a change of the pipeline that no schema of its state shows.

A window of another size, another key of the same type, another join condition: state made with the
one would be read as if it were made with the other, and the results would be wrong without a word.
A sink with another path would begin in the middle. So each checkpoint keeps a *fingerprint* of each
operator (``Fingerprint``): what a source reads and a sink writes, and the expressions of what keeps
state. A start compares them with those of the pipeline:

1. Before the JVM starts: sinks, sources of ``weir.sources``, keys of Python operators
   (``declared``). Also for a job that has finished, which would otherwise be said to be done.
2. When a task's plan is built, before its first batch: sources that Spark reads, and what Spark's
   plan says of each step (``spark/state/plan_words.py``).

A difference is refused, and the message asks for a decision: ``--accept-changed-state NAME`` goes
on with the state as it is; another uid starts the step without state.

What is not compared: a watermark where there was none; texts of another version of the wording, or
read from another release's plan, since the same expression may be written in another way there;
operators that only one side has (``state_mapping.py`` decides about these); a sink's target if the
job starts from another job's snapshot, which may be for new tables on purpose.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from weir.core.types import CompletedCheckpoint, Fingerprint, JobId, OperatorId
from weir.errors import JobError
from weir.masking import masked
from weir.storage.paths import is_local, is_same

#: The version of Weir's wording: raise it when the same pipeline gets other texts.
WORDING = 1
#: What the words of a watermark begin with.
WATERMARK = "watermark on "
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_PLACE = re.compile(r"(?P<kind>[^/]* )(?P<path>/.*)")


@dataclass(frozen=True, kw_only=True)
class DeclaredOperator:
    """An operator of the pipeline, as far as it is known without a JVM."""

    operator_id: OperatorId
    #: ``source rows``
    label: str
    is_source: bool = False
    is_sink: bool = False
    fingerprint: Fingerprint | None = None

    @property
    def name(self) -> str:
        """The name of its step."""
        return self.label.partition(" ")[2]


def declared(
    *, identity: str = "", expressions: Sequence[str] = (), engine: str = ""
) -> Fingerprint:
    """A fingerprint in this version's wording, without secrets and addresses in memory."""
    shown = _ADDRESS.sub("", masked(identity))
    return Fingerprint(
        version=WORDING, identity=shown, engine=engine, expressions=tuple(expressions)
    )


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Compares a pipeline with the checkpoint from which it starts."""

    operators: Mapping[OperatorId, DeclaredOperator]
    #: Names or uids of steps whose changes the user has accepted.
    accepted: frozenset[str]
    #: Gets messages for people.
    note: Callable[[str], None]
    _said: set[str] = field(default_factory=set)

    def check_start(self, checkpoint: CompletedCheckpoint, job_id: JobId) -> None:
        """Compare what is known without a JVM. Raises ``JobError`` for a change.

        ``job_id`` is the job that starts.
        """
        known = _fingerprints(checkpoint)
        if not known:
            self._say(
                f"Checkpoint {checkpoint.checkpoint_id} has no fingerprints of its steps, so this"
                " start cannot notice changed expressions, sources or sinks; the next one can"
            )
        for name, operator in self.operators.items():
            if operator.fingerprint is not None and name in known:
                if operator.is_sink and checkpoint.job_id != job_id:
                    continue
                self._compare(operator, known[name], operator.fingerprint, checkpoint)

    def check(
        self, found: Mapping[OperatorId, Fingerprint], checkpoint: CompletedCheckpoint
    ) -> None:
        """Compare what Spark's plan of a task says. Raises ``JobError`` for a change."""
        known = _fingerprints(checkpoint)
        for name, fingerprint in found.items():
            if name in known:
                self._compare(self.operators[name], known[name], fingerprint, checkpoint)

    def check_finished(
        self, checkpoint: CompletedCheckpoint, found: Mapping[OperatorId, Fingerprint]
    ) -> None:
        """Compare what a job that has finished would read and write now.

        ``found`` are sources that Spark reads. Raises ``JobError`` if there is something else.
        """
        known = _fingerprints(checkpoint)
        names = {operator.operator_id for task in checkpoint.tasks for operator in task.operators}
        for name, operator in self.operators.items():
            if not (operator.is_source or operator.is_sink) or self._is_accepted(operator):
                continue
            kind, _, step = operator.label.partition(" ")
            if name not in names:
                self._refuse_finished(operator, f"its pipeline has a new {kind}, {step!r}")
            before, now = known.get(name), found.get(name, operator.fingerprint)
            if before is not None and now is not None and not _is_same_identity(before, now):
                does = "read" if operator.is_source else "wrote"
                self._refuse_finished(
                    operator,
                    f"{kind} {step!r} {does} {before.identity}, and is now {now.identity}",
                )

    def source_ids(self, checkpoint: CompletedCheckpoint) -> frozenset[OperatorId]:
        """The sources of which only Spark knows what they read, and the checkpoint what they read.

        Without those whose changes are accepted.
        """
        known = _fingerprints(checkpoint)
        return frozenset(
            name
            for name, operator in self.operators.items()
            if operator.is_source
            and operator.fingerprint is None
            and name in known
            and known[name].identity
            and not self._is_accepted(operator)
        )

    def _compare(
        self,
        operator: DeclaredOperator,
        before: Fingerprint,
        now: Fingerprint,
        checkpoint: CompletedCheckpoint,
    ) -> None:
        found = []
        if not _is_same_identity(before, now):
            does = "read" if operator.is_source else "wrote"
            found.append(f"it {does} {before.identity}, and is now {now.identity}")
        if before.expressions not in (now.expressions, _without_added_watermarks(before, now)):
            difference = _difference(before.expressions, now.expressions)
            if (before.version, before.engine) == (now.version, now.engine):
                found.append(difference)
            else:
                self._say(
                    f"step {operator.name!r} is described in another way than by"
                    f" {before.engine or 'an earlier Weir'}, so a change would not be noticed:"
                    f" {difference}"
                )
        if not found:
            return
        if self._is_accepted(operator):
            self._say(f"accepted: step {operator.name!r} has changed: {'; '.join(found)}")
            return
        self._refuse(operator, "; ".join(found), checkpoint)

    def _is_accepted(self, operator: DeclaredOperator) -> bool:
        return bool(self.accepted & {operator.operator_id, self._called(operator)})

    def _called(self, operator: DeclaredOperator) -> str:
        """What a user calls it: its name, or its id if a step and its sink share the name."""
        names = [other.name for other in self.operators.values()]
        return operator.name if names.count(operator.name) <= 1 else operator.operator_id

    def _refuse(
        self, operator: DeclaredOperator, because: str, checkpoint: CompletedCheckpoint
    ) -> NoReturn:
        kind = operator.label.partition(" ")[0]
        what = kind if operator.is_source or operator.is_sink else "step"
        snapshot = "savepoint" if checkpoint.kind.is_savepoint else "checkpoint"
        raise JobError(
            f"Cannot go on from {snapshot} {checkpoint.checkpoint_id}"
            f" ({checkpoint.external_path}), because {what} {operator.name!r} has changed:"
            f" {because}. {_ways(operator, self._called(operator))}"
        )

    def _refuse_finished(self, operator: DeclaredOperator, because: str) -> NoReturn:
        raise JobError(
            f"The job has already finished, but {because}: nothing was run. Run it from scratch"
            " with --fresh (into new tables), give the pipeline a job name of its own, or say that"
            f" nothing is to be run with --accept-changed-state {self._called(operator)}."
        )

    def _say(self, message: str) -> None:
        """Once, however many attempts there are."""
        if message not in self._said:
            self._said.add(message)
            self.note(message)


def _ways(operator: DeclaredOperator, called: str) -> str:
    accept = f"--accept-changed-state {called}"
    if operator.is_sink:
        return (
            "The new target would lack all rows before this checkpoint. Restore the sink; or start"
            " from a savepoint (weir stop) into new tables; or write the rows from now on to the"
            f" new target with {accept}; or give the sink another uid, which also needs"
            " --allow-non-restored-state."
        )
    if operator.is_source:
        return (
            "The positions in the checkpoint are of the old input. Restore the source; or go on"
            f" from these positions in the new input with {accept}; or give the source another uid"
            " and a chain of its own, with --allow-non-restored-state."
        )
    return (
        "The state was made by the old step. Restore the step; or go on with the state as it is"
        f" with {accept}; or give the step another uid and start_new_chain(), which starts it"
        " without state, with --allow-non-restored-state."
    )


def _fingerprints(checkpoint: CompletedCheckpoint) -> dict[OperatorId, Fingerprint]:
    return {
        operator.operator_id: operator.fingerprint
        for task in checkpoint.tasks
        for operator in task.operators
        if operator.fingerprint is not None
    }


def _is_same_identity(before: Fingerprint, now: Fingerprint) -> bool:
    """Whether both name the same thing, or one of them does not say, or not in the same words."""
    old, new = before.identity, now.identity
    if not old or not new or old == new or before.version != now.version:
        return True
    first, second = _PLACE.fullmatch(old), _PLACE.fullmatch(new)
    return (
        first is not None
        and second is not None
        and first["kind"] == second["kind"]
        and is_local(first["path"])
        and is_same(first["path"], second["path"])
    )


def _without_added_watermarks(before: Fingerprint, now: Fingerprint) -> tuple[str, ...]:
    """The new expressions without watermarks that the step did not have.

    No row has been late by them.
    """
    return tuple(
        text
        for text in now.expressions
        if text in before.expressions or not text.startswith(WATERMARK)
    )


def _difference(before: Iterable[str], now: Iterable[str]) -> str:
    """What only one of them has, old and new."""
    old, new = list(before), list(now)
    for text in list(old):
        if text in new:
            old.remove(text)
            new.remove(text)
    if not old and not new:
        return "its parts are in another order"
    return f"it was {_listed(old)}, and is now {_listed(new)}"


def _listed(texts: Sequence[str]) -> str:
    return " and ".join(f'"{text}"' for text in texts) or "without it"
