"""Master hooks as the durable half calls them: by identifier, one call per hook at a time (P44)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weir.core.messages.job import TriggerHook
from weir.core.types import CompletedCheckpoint, Payload, SnapshotKind
from weir.durable.hooks import MasterHook, MasterHooks
from weir.errors import HookError, JobError
from weir.runtime.concurrency import ThreadWaits


class NotedHook(MasterHook):
    """Records its calls in a list that hooks may share; ``during`` runs within each call."""

    def __init__(self, identifier: str, calls: list[tuple[Any, ...]]) -> None:
        self._identifier = identifier
        self._calls = calls
        self.during: Callable[[], object] = lambda: None

    @property
    def identifier(self) -> str:
        return self._identifier

    def trigger(self, checkpoint_id: int, timestamp_ms: int) -> Payload | None:
        self._calls.append(("trigger", self._identifier, checkpoint_id, timestamp_ms))
        self.during()
        return {"of": self._identifier}

    def restore(self, checkpoint_id: int, state: Payload | None) -> None:
        self._calls.append(("restore", self._identifier, checkpoint_id, state))
        self.during()

    def reset(self) -> None:
        self._calls.append(("reset", self._identifier))
        self.during()


class Hooks:
    """The hooks ``a`` and ``b`` of a job."""

    def __init__(self, *, allow_non_restored_state: bool = False) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.a, self.b = NotedHook("a", self.calls), NotedHook("b", self.calls)
        self.all = MasterHooks(
            [self.a, self.b], allow_non_restored_state=allow_non_restored_state, waits=ThreadWaits()
        )

    def trigger(self, identifier: str) -> Payload | None:
        """Ask one hook for its state at checkpoint 7."""
        return self.all.trigger(
            TriggerHook(identifier=identifier, checkpoint_id=7, timestamp_ms=1_000)
        )


def checkpoint(**hook_states: Payload) -> CompletedCheckpoint:
    """Checkpoint 7 with these hook states."""
    return CompletedCheckpoint(
        job_id="0" * 32,
        checkpoint_id=7,
        kind=SnapshotKind.CHECKPOINT,
        timestamp_ms=1_000,
        completion_timestamp_ms=2_000,
        attempt=1,
        tasks=(),
        hook_states=hook_states,
        external_path="/checkpoints/chk-7",
    )


def refused(call: Callable[[], object]) -> str:
    """The message of the call's ``HookError``."""
    with pytest.raises(HookError) as caught:
        call()
    return str(caught.value)


def test_a_hook_is_triggered_by_its_identifier() -> None:
    """It gets the checkpoint id and timestamp, its state is passed on, and no other hook is
    called."""
    hooks = Hooks()
    assert hooks.trigger("b") == {"of": "b"}
    assert hooks.calls == [("trigger", "b", 7, 1_000)]


def test_every_hook_gets_its_own_state_back_and_one_that_was_added_gets_none() -> None:
    """States are matched by identifier, in whatever order the checkpoint lists them."""
    hooks = Hooks()
    hooks.all.restore(checkpoint(b={"of": "b"}))
    assert hooks.calls == [("restore", "a", 7, None), ("restore", "b", 7, {"of": "b"})]


def test_without_a_checkpoint_every_hook_is_reset() -> None:
    """The job starts from scratch."""
    hooks = Hooks()
    hooks.all.restore(None)
    assert hooks.calls == [("reset", "a"), ("reset", "b")]


def test_a_state_that_no_hook_claims_is_refused_in_one_sentence() -> None:
    """It names the hook and both ways out, and no hook is restored before."""
    hooks = Hooks()
    with pytest.raises(
        JobError, match=r"'gone'.*Job\.master_hook.*--allow-non-restored-state\.$"
    ) as caught:
        hooks.all.restore(checkpoint(a={"of": "a"}, gone={"of": "gone"}))
    assert len(str(caught.value).splitlines()) == 1
    assert hooks.calls == []


def test_a_state_that_no_hook_claims_can_be_left_out() -> None:
    """The user's setting overrides the refusal, and the job's hooks get their own states."""
    hooks = Hooks(allow_non_restored_state=True)
    hooks.all.restore(checkpoint(a={"of": "a"}, gone={"of": "gone"}))
    assert hooks.calls == [("restore", "a", 7, {"of": "a"}), ("restore", "b", 7, None)]


def test_a_hook_that_has_not_come_back_is_not_called_again() -> None:
    """Neither by the next checkpoint nor by a new attempt; the error names the hook and its
    limit."""
    hooks, said = Hooks(), list[str]()

    def meanwhile() -> None:
        said.append(refused(lambda: hooks.trigger("a")))
        said.append(refused(lambda: hooks.all.restore(checkpoint())))
        said.append(refused(lambda: hooks.all.restore(None)))

    hooks.a.during = meanwhile
    hooks.trigger("a")
    assert hooks.calls == [("trigger", "a", 7, 1_000)]
    for sentence in said:
        assert "'a' has not returned" in sentence
        assert "execution.checkpointing.timeout" in sentence


@pytest.mark.parametrize("restored", [None, checkpoint()], ids=["reset", "restore"])
def test_a_hook_that_is_being_restored_is_not_triggered(
    restored: CompletedCheckpoint | None,
) -> None:
    """Neither while it restores a state nor while it resets."""
    hooks, said = Hooks(), list[str]()
    hooks.b.during = lambda: said.append(refused(lambda: hooks.trigger("b")))
    hooks.all.restore(restored)
    assert len(said) == 1
    assert not any(call[0] == "trigger" for call in hooks.calls)


def test_a_hook_that_has_not_come_back_holds_up_no_other() -> None:
    """Hooks are independent of each other."""
    hooks, states = Hooks(), list[Payload | None]()
    hooks.a.during = lambda: states.append(hooks.trigger("b"))
    hooks.trigger("a")
    assert states == [{"of": "b"}]


def test_a_hook_that_came_back_is_called_again() -> None:
    """Even a call that raised an error."""
    hooks = Hooks()
    hooks.a.during = lambda: refused(lambda: hooks.trigger("a"))
    hooks.trigger("a")
    hooks.a.during = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        hooks.trigger("a")
    hooks.a.during = lambda: None
    assert hooks.trigger("a") == {"of": "a"}
    hooks.all.restore(None)
    assert hooks.calls[-2:] == [("reset", "a"), ("reset", "b")]
