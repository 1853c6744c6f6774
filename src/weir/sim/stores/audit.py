"""A sink under the laws of its contract: a user's, or one of the product's over a simulated store.

``Ledger`` knows which rows were staged and which epochs were committed, over all drivers of a run.
``AuditedSink`` passes every call on and compares what the target shows with the ledger. Laws, by
the rules of ``weir.sinks.base``:

1. What the target shows belongs to committed epochs only, and no row is there twice.
2. Payloads are JSON values, and every row that was staged has one.
3. What ``flush`` made durable survives a machine crash.
4. ``commit`` shows all rows of its epoch, and a second commit of an epoch changes nothing.
5. ``newest_committed`` is right.
6. ``clean`` and ``open`` delete nothing that is still to be committed.

``StoreSink`` has the laws of sinks whose target is a simulated store (``store.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from weir.core.types import JobId, OperatorId, Payload
from weir.errors import (
    HangingTransactionError,
    LostRowsError,
    SinkError,
    SinkMismatchError,
    UnsupportedEnvironmentError,
    WeirError,
)
from weir.json_values import read_back
from weir.runtime.failures import describe
from weir.sim.stores.frame import Executors, Frame, numbers
from weir.sim.stores.store import Store
from weir.sinks.base import Batch, Commit, Sink, SinkContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: A row as the laws compare it: the texts of its values, with their names or in their order.
Shape = tuple[Any, ...]
#: Gives all rows that readers of a sink's target see.
Visible = Callable[[Sink], Iterable[Any]]

#: How often the laws look at the target after a call that should not change it, and how often a
#: commit is repeated.
_LOOKS = 0.3
_REPEATS = 0.4
_KEPT_CALLS = 6


def shaped(row: Any, *, named: bool) -> Shape:
    """A row for comparisons; ``named``: with the names of its columns."""
    if isinstance(row, dict):
        items = [(str(key), _text(value)) for key, value in row.items()]
        return tuple(sorted(items)) if named else tuple(value for _, value in items)
    return tuple(map(_text, row)) if isinstance(row, list | tuple) else (_text(row),)


def _text(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted((str(key), _text(one)) for key, one in value.items()))
    return tuple(map(_text, value)) if isinstance(value, list | tuple) else str(value)


@dataclass
class SinkAccount:
    """What is known of one sink, whatever driver has done it."""

    #: The rows of each staged batch, by ticket.
    staged: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    #: (job, epoch) -> the tickets that it commits.
    epochs: dict[tuple[JobId, int], tuple[int, ...]] = field(default_factory=dict)
    #: Epochs of which some commit was begun, and none has returned.
    doubtful: set[tuple[JobId, int]] = field(default_factory=set)
    #: By batch: who staged it last, and its rows, which do not count once it is staged again.
    unfinished: dict[int, tuple[SinkContext, DataFrame]] = field(default_factory=dict)
    #: The newest attempt that opened it.
    attempt: tuple[JobId, int] = ("", 0)
    calls: list[str] = field(default_factory=list)
    #: A machine crash came after something was staged.
    crashed: bool = False

    def rows(self, *, doubtful: bool) -> Iterator[dict[str, Any]]:
        """The rows of the epochs that are committed, or of the others."""
        return self.rows_of(lambda epoch: (epoch in self.doubtful) is doubtful)

    def rows_of(self, counts: Callable[[tuple[JobId, int]], bool]) -> Iterator[dict[str, Any]]:
        """The rows of the epochs that count."""
        for epoch, tickets in self.epochs.items():
            if counts(epoch):
                for ticket in tickets:
                    yield from self.staged[ticket]


class Ledger:
    """The accounts of all sinks of one run."""

    def __init__(
        self,
        tell: Callable[[str], None],
        broken: Callable[[str], None],
        undisturbed: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """``tell`` adds to the story; ``broken`` gets the text of a broken law.

        Code of the user that looks at a target runs in ``undisturbed``.
        """
        self.tell = tell
        self.broken = broken
        self.undisturbed = undisturbed
        self._accounts: dict[OperatorId, SinkAccount] = {}
        self._tickets = 0

    def account(self, sink: OperatorId) -> SinkAccount:
        """The account of one sink."""
        return self._accounts.setdefault(sink, SinkAccount())

    def ticket(self) -> int:
        """A new number for a staged batch."""
        self._tickets += 1
        return self._tickets

    def until(self, sink: OperatorId, job_id: JobId, epoch: int) -> Iterator[dict[str, Any]]:
        """The rows of a job's epochs up to this one."""
        return self.account(sink).rows_of(lambda one: one[0] == job_id and one[1] <= epoch)

    def beyond(self, sink: OperatorId, job_id: JobId, epoch: int) -> Iterator[dict[str, Any]]:
        """The rows of a job's later epochs."""
        return self.account(sink).rows_of(lambda one: one[0] == job_id and one[1] > epoch)

    def give_up(self, job_id: JobId, epoch: int) -> None:
        """A job goes back to an epoch, and readers have seen nothing of its later epochs."""
        for account in self._accounts.values():
            for key in [one for one in account.epochs if one[0] == job_id and one[1] > epoch]:
                del account.epochs[key]
                account.doubtful.discard(key)

    def called(self, sink: OperatorId, call: str) -> None:
        """Note a call."""
        self.tell(f"{sink}: {call}")
        account = self.account(sink)
        account.calls = [*account.calls, call][-_KEPT_CALLS:]

    def crashed(self, repeated: set[int], lost: Sequence[str]) -> None:
        """The machine crashed: what ``repeated`` tickets showed may be lost until the recommit."""
        for name, account in self._accounts.items():
            for epoch, tickets in account.epochs.items():
                if repeated & set(tickets):
                    account.doubtful.add(epoch)
            account.crashed |= bool(account.staged)
            self.called(name, "a machine crash")
        self.tell(f"lost in the crash: {', '.join(lost) or 'nothing'}")


class AuditedSink(Sink):
    """Passes calls on to a user's sink. Its payloads carry a ticket beside the user's payload."""

    def __init__(
        self,
        name: OperatorId,
        sink: Sink,
        *,
        ledger: Ledger,
        visible: Visible | None,
        random: Random,
        fails: Callable[[], bool],
        late: Callable[[], bool],
        load: Callable[[], Sink],
    ) -> None:
        """``fails`` decides whether a commit fails now, before or after the user's part of it.

        ``late`` decides whether an older attempt still stages now, with a sink from ``load``.
        """
        self._name = name
        self._sink = sink
        self._ledger = ledger
        self._visible = visible
        self._random = random
        self._fails = fails
        self._late = late
        self._load = load
        self._context: SinkContext | None = None
        #: Tickets of rows that ``finish`` will stage.
        self._held: list[int] = []
        self._holds_back = type(sink).finish is not Sink.finish
        self.requires_final_checkpoint = sink.requires_final_checkpoint
        self.compares = sink.compares
        self.function = sink.function

    def describe(self) -> str:
        """As the user's."""
        return self._sink.describe()

    def identity(self) -> str:
        """As the user's."""
        return self._sink.identity()

    def table_path(self) -> str | None:
        """As the user's."""
        return self._sink.table_path()

    def check(self, context: SinkContext) -> None:
        """As the user's."""
        self._sink.check(context)

    def open(self, context: SinkContext) -> None:
        """Open it; nothing may appear or vanish."""
        self._context, self._held = context, []
        account = self._account
        if account.attempt[0] != context.job_id or context.attempt > account.attempt[1]:
            account.attempt = (context.job_id, context.attempt)
        with self._calling("open", f"open() of attempt {context.attempt}"):
            self._sink.open(context)
        self._look("open", often=_LOOKS)

    def stage(self, frame: DataFrame, batch: Batch) -> Payload | None:
        """Stage a batch under a ticket. Nothing may appear."""
        given: Any = frame
        rows = [dict(row) for row in given.rows()]
        ticket = self._ledger.ticket()
        self._account.staged[ticket] = rows
        with self._calling("stage", f"stage() of batch {batch.batch_id}, {len(rows)} rows"):
            payload = self._sink.stage(frame, batch)
        self._stage_late(batch)
        self._account.unfinished[batch.batch_id] = (self._opened, frame)
        self._look("stage", often=_LOOKS)
        if self._holds_back:
            self._held += [ticket] if rows else []
            return None if payload is None else self._wrapped(payload, self._taken())
        if payload is None:
            # A newer attempt may have cleaned up.
            if rows and self._is_newest:
                self._break(2, f"stage() returned None for {len(rows)} rows")
            return None
        return self._wrapped(payload, [ticket])

    def _stage_late(self, batch: Batch) -> None:
        """Let an older attempt's executors, or its driver, go on with the same batch."""
        before = self._account.unfinished.get(batch.batch_id)
        if before is None or before[0].attempt >= self._opened.attempt or not self._late():
            return
        context, frame = before
        self._call(f"stage() of batch {batch.batch_id} by attempt {context.attempt}, late")
        sink = self._load()
        # Nobody waits for it.
        with self._ledger.undisturbed(), suppress(Exception):
            sink.open(context)
            sink.stage(frame, batch)

    def finish(self, batch: Batch) -> Payload | None:
        """Stage what was held back."""
        self._call("finish()")
        payload = self._sink.finish(batch)
        if payload is None and self._held:
            self._break(2, f"finish() left {len(self._held)} batches behind")
        return None if payload is None else self._wrapped(payload, self._taken())

    def _taken(self) -> list[int]:
        held, self._held = self._held, []
        return held

    def flush(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Make staged rows durable."""
        with self._calling("flush", f"flush() of {len(payloads)} payloads"):
            flushed = self._sink.flush([one["user"] for one in payloads])
        if len(flushed) != len(payloads):
            self._break(2, f"flush() returned {len(flushed)} payloads for {len(payloads)}")
            flushed = [one["user"] for one in payloads]
        self._look("flush", often=_LOOKS)
        return [
            self._wrapped(one, before["tickets"])
            for one, before in zip(flushed, payloads, strict=True)
        ]

    def close(self) -> None:
        """Close it."""
        self._call("close()")
        self._sink.close()

    def staged_files(self, payload: Payload) -> Sequence[str]:
        """None: real files are outside of the simulated disk, to which a savepoint copies."""
        return ()

    def damaged(self, payload: Payload) -> str | None:
        """As the user's."""
        return self._sink.damaged(payload["user"])

    def landmark(self) -> str | None:
        """None: real files are outside of the simulated disk."""
        return None

    def commits(self, context: SinkContext) -> Iterator[Commit]:
        """None: nobody puts back old records in these runs."""
        return iter(())

    def newest_committed(self) -> int | None:
        """As the user's."""
        return self._sink.newest_committed()

    def newest_begun(self) -> int | None:
        """As the user's."""
        return self._sink.newest_begun()

    def check_not_gone_back(self, known: int) -> None:
        """As the user's."""
        with self._calling("compare", f"check_not_gone_back({known})"):
            self._sink.check_not_gone_back(known)

    def clean(self, attempt: int) -> None:
        """Clean up; nothing may appear or vanish."""
        with self._calling("clean", f"clean({attempt})"):
            self._sink.clean(attempt)
        self._look("clean", often=1.0)

    def commit(self, epoch: int, payloads: Sequence[Payload]) -> int:
        """Commit an epoch, perhaps twice."""
        account, key = self._account, (self._opened.job_id, epoch)
        tickets = tuple(ticket for one in payloads for ticket in one["tickets"])
        if key not in account.epochs:
            account.epochs[key] = tickets
            account.doubtful.add(key)
        if self._fails():
            raise SinkError(f"Simulated: the commit of epoch {epoch} failed.")
        own = [one["user"] for one in payloads]
        call = "commit" if key in account.doubtful else "commit again"
        with self._calling(call, f"commit({epoch}) with {len(payloads)} payloads"):
            rows = self._sink.commit(epoch, own)
        account.doubtful.discard(key)
        self._call(f"commit({epoch}) returned {rows}")
        self._look(f"commit({epoch})", often=1.0, rule=4)
        self._after_commit(epoch, own)
        if self._fails():
            raise SinkError(f"Simulated: nobody knows what became of epoch {epoch}.")
        return rows

    def _after_commit(self, epoch: int, payloads: list[Payload]) -> None:
        self._check_newest(epoch)
        if self._random.random() < _REPEATS:
            self._again(epoch, payloads)

    def _again(self, epoch: int, payloads: list[Payload]) -> None:
        """Commit the same epoch once more, as after a crash."""
        self._call(f"commit({epoch}) again")
        try:
            with self._ledger.undisturbed():
                self._sink.commit(epoch, payloads)
        except Exception as error:
            self._break(4, f"commit({epoch}) fails when it is repeated: {describe(error)}")
            return
        self._look(f"the second commit({epoch})", often=1.0, rule=4)

    def _check_newest(self, epoch: int) -> None:
        found = self._sink.newest_committed()
        own = [
            number
            for (job, number), tickets in self._account.epochs.items()
            if job == self._opened.job_id
            and (job, number) not in self._account.doubtful
            and any(self._account.staged[one] for one in tickets)
        ]
        begun = [number for job, number in self._account.epochs if job == self._opened.job_id]
        if found is not None and not max(own, default=0) <= found <= max(begun):
            expected = max(own, default=None)
            self._break(5, f"newest_committed() is {found} after commit({epoch}), not {expected}")

    # -- inside

    def _look(self, after: str, *, often: float, rule: int = 1) -> None:
        """Compare what the target shows with the ledger."""
        if self._visible is None or self._random.random() >= often:
            return
        with self._ledger.undisturbed():
            shown = list(self._visible(self._sink))
        wrong = difference(self._account, shown)
        if wrong is not None:
            kind, text = wrong
            lost = kind == "lost"
            self._break(self._rule_of_loss(rule) if lost else rule, f"after {after}, {text}")

    def _rule_of_loss(self, otherwise: int = 4) -> int:
        """The rule that explains best why rows are gone."""
        calls = self._account.calls
        if self._account.crashed:
            return 3
        return 6 if any(one.startswith("clean") for one in calls[-3:]) else otherwise

    @contextmanager
    def _calling(self, call: str, said: str) -> Iterator[None]:
        """Note a call, and judge its failure."""
        self._call(said)
        try:
            yield
        except Exception as error:
            self._judge(call, said, error)
            raise

    def _judge(self, call: str, said: str, error: Exception) -> None:
        """An error of the user's code: no fault explains it, unless the attempt is over."""
        if not self._is_newest:
            return
        if call == "commit" and isinstance(error, LostRowsError):
            self._break(self._rule_of_loss(), f"{said} has lost rows: {error}")
        elif call in ("stage", "flush") and "Simulated" not in str(error):
            text = f"{call}() fails: {describe(error)}"
            gone = isinstance(error, FileNotFoundError | LostRowsError)
            self._break(6 if gone else 0, text)

    def _break(self, rule: int, text: str) -> None:
        named = f"rule {rule} of sinks is broken ({_RULES[rule]})" if rule else "it raised"
        calls = "; ".join(self._account.calls)
        self._ledger.broken(f"sink {self._name!r}: {named}: {text}. Its last calls: {calls}")

    def _wrapped(self, payload: Payload, tickets: list[int]) -> Payload:
        try:
            if not isinstance(payload, dict):
                raise ValueError(f"it is a {type(payload).__name__}, not a map")
            read_back(payload)
        except ValueError as error:
            self._break(2, f"a payload cannot be stored, since {error}")
            payload = {}
        return {"user": payload, "tickets": tickets}

    def _call(self, call: str) -> None:
        self._ledger.called(self._name, call)

    @property
    def _is_newest(self) -> bool:
        return self._account.attempt == (self._opened.job_id, self._opened.attempt)

    @property
    def _account(self) -> SinkAccount:
        return self._ledger.account(self._name)

    @property
    def _opened(self) -> SinkContext:
        if self._context is None:
            raise SinkError(f"{self.describe()} was used before it was opened.")
        return self._context


_RULES: Mapping[int, str] = {
    1: "readers see only rows of completed checkpoints, each once",
    2: "payloads are JSON values, and cover every staged row",
    3: "what flush and commit have done survives a machine crash: fsync files and directories",
    4: "commit shows an epoch's rows, all of them, once, however often it is called",
    5: "newest_committed is the newest epoch with rows, or a later one that was committed",
    6: "clean deletes only what older attempts of the same sink staged and nobody committed",
}


def difference(account: SinkAccount, shown: list[Any]) -> tuple[str, str] | None:
    """How the rows that a target shows differ from the ledger; None if they do not."""
    named = all(isinstance(row, dict) for row in shown)
    seen = Counter(shaped(row, named=named) for row in shown)
    certain = Counter(shaped(row, named=named) for row in account.rows(doubtful=False))
    possible = certain + Counter(shaped(row, named=named) for row in account.rows(doubtful=True))
    lost, surplus = certain - seen, seen - possible
    if surplus:
        one = next(iter(surplus))
        staged = {shaped(row, named=named) for rows in account.staged.values() for row in rows}
        if one in possible:
            why = "is there twice"
        elif one in staged:
            why = "is visible, but no checkpoint that contains it has completed"
        else:
            why = "is visible, but was never staged so"
        return "surplus", f"{surplus.total()} rows too many are visible: {_shown(one)} {why}"
    if lost:
        one = next(iter(lost))
        return "lost", f"{lost.total()} committed rows are not visible, such as {_shown(one)}"
    return None


def _shown(row: Shape) -> str:
    if row and isinstance(row[0], tuple) and len(row[0]) == 2:
        return "{" + ", ".join(f"{name}: {value}" for name, value in row) + "}"
    return repr(row)


class StoreSink(AuditedSink):
    """A sink of the product's over a simulated store.

    Requests may be carried out later, and the store may go back: the laws of ``store.py``, whose
    numbers are in brackets, hold at every change of the store.
    """

    def __init__(
        self,
        name: OperatorId,
        sink: Sink,
        *,
        store: Store,
        ledger: Ledger,
        fails: Callable[[], bool],
        executors: Executors,
        commits: Callable[[JobId, int, int], None],
    ) -> None:
        """``commits`` gets job, epoch and attempt of each commit that begins."""
        super().__init__(
            name,
            sink,
            ledger=ledger,
            visible=lambda _: (),
            random=Random(0),
            fails=fails,
            # Its executors outlive their driver.
            late=lambda: False,
            load=lambda: sink,
        )
        self._store = store
        self._commits = commits
        self._executors = executors

    def stage(self, frame: DataFrame, batch: Batch) -> Payload | None:
        """Stage rows, or numbers. What is not committed again by now was not to be."""
        given: Any = frame
        if not given:
            return None
        table = numbers(given) if isinstance(given, list) else given.toArrow()
        rows: Any = Frame(table, self._executors)
        return super().stage(rows, batch)

    def flush(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Make staged rows durable: the store holds them from now on (6)."""
        age = self._store.age
        flushed = super().flush(payloads)
        held = self._store.held()
        # A newer attempt may have cleaned up.
        if held is not None and age == self._store.age and self._is_newest:
            named = {shaped(row, named=True) for row in held}
            for ticket in [ticket for one in flushed for ticket in one["tickets"]]:
                for row in self._account.staged[ticket]:
                    if shaped(row, named=True) not in named:
                        self._violate(f"row {row} was flushed, and is neither shown nor staged")
        return flushed

    def commit(self, epoch: int, payloads: Sequence[Payload]) -> int:
        """Commit an epoch. With rows, it looks whether the store has gone back."""
        self._commits(self._opened.job_id, epoch, self._opened.attempt)
        if payloads:
            self._store.unseen = False
        return super().commit(epoch, payloads)

    def newest_committed(self) -> int | None:
        """As the product's."""
        with self._calling("newest", "newest_committed()"):
            return super().newest_committed()

    def newest_begun(self) -> int | None:
        """As the product's."""
        with self._calling("newest", "newest_begun()"):
            return super().newest_begun()

    def check_not_gone_back(self, known: int) -> None:
        """An attempt begins, and looks whether the store has gone back behind what it knows."""
        shown = {shaped(row, named=True) for row in self._store.rows()}
        rows = self._ledger.until(self._name, self._opened.job_id, known)
        if any(shaped(row, named=True) not in shown for row in rows):
            self._store.unseen = False
        super().check_not_gone_back(known)

    def clean(self, attempt: int) -> None:
        """Clean up: no session of an older attempt is alive after this (5)."""
        dead = self._store.sessions(self._sink, attempt)
        super().clean(attempt)
        if left := dead & self._store.sessions(self._sink, attempt):
            self._violate(f"{len(left)} sessions of dead attempts outlive clean")

    def staged_files(self, payload: Payload) -> Sequence[str]:
        """As the product's."""
        return self._sink.staged_files(payload["user"])

    def landmark(self) -> str | None:
        """As the product's."""
        return self._sink.landmark()

    def commits(self, context: SinkContext) -> Iterator[Commit]:
        """As the product's."""
        with self._calling("commits", "commits()"):
            return iter([*self._sink.commits(context)])

    def look(self) -> None:
        """Compare what readers see with what they may see (1, 2, 7)."""
        wrong = difference(self._account, self._store.rows())
        if wrong is not None and not (wrong[0] == "lost" and self._store.has_lost_rows):
            self._violate(wrong[1])
        if (disagreement := self._store.disagreement()) is not None:
            self._violate(disagreement)

    # -- inside

    def _look(self, after: str, *, often: float, rule: int = 1) -> None:
        """After a commit or ``clean``; the store reports other changes."""
        if often == 1.0:
            self.look()

    def _after_commit(self, epoch: int, payloads: list[Payload]) -> None:
        """Nothing: drivers repeat commits often enough."""

    def _judge(self, call: str, said: str, error: Exception) -> None:
        if isinstance(error, LostRowsError):
            self._store.noticed = True
            if not self._store.has_gone_back:
                self._violate(f"nothing is lost, but the job says: {error}")
        elif isinstance(error, HangingTransactionError):
            self._store.repair(self._violate)
        elif isinstance(error, SinkMismatchError | UnsupportedEnvironmentError):
            self._violate(f"{said} fails for good: {error}")
        elif not isinstance(error, WeirError) and (self._context is None or self._is_newest):
            # A newer attempt may delete what an older attempt uses.
            self._violate(f"{said} fails: {describe(error)}")

    def _violate(self, what: str) -> None:
        self._ledger.broken(f"sink {self._name!r}, {self._sink.describe()}: {what}")
