"""``UserCode``: a user's pipeline as the simulated drivers load it, and the queries they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weir.core.coordination.coordinators import CoordinatedOperator
from weir.core.task.plan import TaskPlan
from weir.core.types import OperatorId, Payload
from weir.durable.hooks import MasterHook
from weir.runtime.ports import AttemptStart, PostToTask
from weir.sim.engine.code import DriverCode, Environment
from weir.sim.engine.listener import OrderedListener
from weir.sim.engine.task_port import SimTaskPort
from weir.sim.user.coordinators import AuditedCoordinator, Resets
from weir.sim.user.driver import UserDriver, UserRun
from weir.sim.user.interleaving import Interleaving
from weir.sim.user.plan import UserJob
from weir.sim.user.query import UserQuery
from weir.sources.coordinator import SourceCoordinator
from weir.subtasks.chain import ENTRY


class UserCode:
    """Implements ``weir.sim.engine.code.Code``."""

    def __init__(self, run: UserRun) -> None:
        self._run = run

    def load(self, environment: Environment) -> DriverCode:
        """The objects of one driver."""
        driver = UserDriver(self._run, environment)
        steps = driver.job.steps
        run, broken = self._run, environment.broken
        coordinators: dict[OperatorId, Any] = {
            name: AuditedCoordinator(name, one.coordinator, run.interleaving, broken)
            for name, one in steps.operators.items()
            if one.coordinator is not None
        }
        return DriverCode(
            plans={name: driver.plan(name) for name in driver.job.vertices},
            sinks=driver.sinks,
            hooks=[
                AuditedHook(hook, environment.hook_fails, run.interleaving, broken)
                for hook in steps.hooks.values()
            ],
            listeners={
                name: [OrderedListener(), *steps.listeners(vertex)]
                for name, vertex in driver.job.vertices.items()
            },
            coordinators=coordinators,
            coordinated={
                name: CoordinatedOperator(
                    vertex=vertex.name,
                    parallelism=driver.process_steps(vertex.name)[name].parallelism,
                    induces_checkpoints=vertex.is_externally_induced,
                )
                for vertex in driver.job.vertices.values()
                for name in driver.process_steps(vertex.name)
                if name in coordinators
            },
            queries=UserQueries(driver),
            session=driver.session,
        )


class UserQueries:
    """Makes the queries of one driver; implements ``weir.sim.engine.task_port.Queries``."""

    def __init__(self, driver: UserDriver) -> None:
        self._driver = driver

    def begin_attempt(self, port: SimTaskPort, start: AttemptStart) -> None:
        """Let operators that had finished in the checkpoint hear that it is complete."""
        checkpoint, driver = start.restored, self._driver
        driver.restored_checkpoint_id = None if checkpoint is None else checkpoint.checkpoint_id
        if checkpoint is None:
            return
        for name in driver.job.vertices:
            state = checkpoint.task(name)
            if state is None or not state.fully_finished or ENTRY not in state.entries:
                continue
            query = UserQuery(port, driver, driver.plan(name), start.attempt, lambda _: None)
            if query.chain is not None:
                query.restore(state, checkpoint)
                query.chain.completed.append(checkpoint.checkpoint_id)
                query.chain.close()

    def make(self, port: SimTaskPort, plan: TaskPlan, attempt: int, post: PostToTask) -> UserQuery:
        """The query of one task."""
        return UserQuery(port, self._driver, plan, attempt, post)


class AuditedHook(MasterHook):
    """A user's master hook, which fails now and then, and whose resets are checked."""

    def __init__(
        self,
        hook: MasterHook,
        fails: Callable[[], bool],
        interleaving: Interleaving,
        broken: Callable[[str], None],
    ) -> None:
        """``broken`` gets the text of a broken law."""
        self._hook = hook
        self._fails = fails
        self._interleaving = interleaving
        self._broken = broken
        self._resets = Resets(f"master hook {hook.identifier!r} ({type(hook).__name__})")

    @property
    def identifier(self) -> str:
        """As the user's."""
        return self._hook.identifier

    def trigger(self, checkpoint_id: int, timestamp_ms: int) -> Payload | None:
        """Its state, unless it fails."""
        if self._fails():
            raise RuntimeError("simulated failure of a hook")
        return self._hook.trigger(checkpoint_id, timestamp_ms)

    def restore(self, checkpoint_id: int, state: Payload | None) -> None:
        """As the user's."""
        self._reset(lambda given: self._hook.restore(checkpoint_id, given), checkpoint_id, state)

    def reset(self) -> None:
        """As the user's."""
        self._reset(lambda _: self._hook.reset(), 0, None)

    def _reset(
        self,
        reset: Callable[[Payload | None], None],
        checkpoint_id: int,
        state: Payload | None,
    ) -> None:
        def snapshot(given: Payload | None) -> Payload | None:
            reset(given)
            # Its state may name the checkpoint.
            return self._hook.trigger(checkpoint_id, 0)

        with self._interleaving.undisturbed():
            wrong = self._resets.broken_law(state, snapshot, self._hook.changed_by_reset)
        if wrong is not None:
            self._broken(wrong)
        reset(state)


def enumerators(job: UserJob) -> dict[OperatorId, SourceCoordinator[Any]]:
    """The coordinators of the user's own sources."""
    return {
        name: one.coordinator
        for name, one in job.steps.operators.items()
        if isinstance(one.coordinator, SourceCoordinator)
    }
