"""``SharedStateRegistry`` and the store on top of it: needed files stay, all others are deleted."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.job_master import MasterWorld, checkpoint, only, retained_files, task_state

from weir.core.checkpoints.store import CompletedCheckpointStore, SharedStateRegistry
from weir.core.messages.job import (
    DiscardCheckpoint,
)
from weir.core.settings import CheckpointConfig

CONFIG = CheckpointConfig(
    interval_ms=None, max_concurrent_checkpoints=4, tolerable_failed_checkpoints=9
)


def test_a_file_is_unused_when_its_last_user_is_unregistered() -> None:
    """MISSION A11: not earlier."""
    registry = SharedStateRegistry()
    registry.register(1, ("x", "y"))
    registry.register(2, ("y", "z"))
    assert registry.unregister(1) == ("x",)
    assert registry.unregister(2) == ("y", "z")


def test_a_user_that_registers_a_file_again_counts_once() -> None:
    """Each attempt registers what its driver has retained again."""
    registry = SharedStateRegistry()
    registry.register(1, ("x",))
    registry.register(1, ("x", "y"))
    assert registry.unregister(1) == ("x", "y")


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 5), st.frozensets(st.sampled_from("abcdef"))))
)
def test_the_registry_agrees_with_a_naive_model(
    steps: list[tuple[bool, int, frozenset[str]]],
) -> None:
    """The model keeps the set of files of each user and compares them all."""
    registry, model = SharedStateRegistry(), dict[int, set[str]]()
    for registers, user, paths in steps:
        if registers or user not in model:
            registry.register(user, sorted(paths))
            model.setdefault(user, set()).update(paths)
        else:
            files = model.pop(user)
            assert set(registry.unregister(user)) == files - set().union(*model.values())
        registry.validate()
        assert registry._users.keys() == set().union(*model.values())


def test_the_files_of_an_aborted_checkpoint_have_no_user_left() -> None:
    """Its base is deleted entirely when it is subsumed."""
    world = MasterWorld(config=CONFIG).running()
    first = world.trigger()
    world.record(world.acknowledge(first, task_state("a", files=("x", "y")), "b"))
    second = world.trigger()
    world.acknowledge(second, task_state("a", files=("x", "z")))
    world.decline(second, "b")
    third = world.trigger()
    effects = world.record(world.acknowledge(third, task_state("a", files=("w",)), "b"))
    assert only(effects, DiscardCheckpoint).files == ("x", "y")


@settings(max_examples=150)
@given(st.integers(min_value=0, max_value=2**32 - 1))
def test_the_store_deletes_exactly_the_files_that_no_checkpoint_can_need(seed: int) -> None:
    """Random checkpoints, each based on the newest completed one at its trigger; some are
    aborted."""
    # Needed are the files that a retained checkpoint names and those that a pending one may name:
    # all files of its base. Once nothing is pending, only the files of the retained checkpoints are
    # left.
    random = Random(seed)
    store = CompletedCheckpointStore(num_retained=random.choice((1, 2, 3)))
    written: set[str] = set()
    deleted: set[str] = set()
    #: By id: the files of the base and its own.
    pending: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    newest: tuple[str, ...] = ()
    for checkpoint_id in range(1, 30):
        kept = tuple(path for path in newest if random.random() < 0.7)
        new = tuple(f"{checkpoint_id}/{i}" for i in range(random.randrange(3)))
        pending[checkpoint_id] = (newest, (*kept, *new))
        while pending and (len(pending) > 3 or random.random() < 0.5):
            over = random.choice(sorted(pending))
            _, files = pending.pop(over)
            if random.random() >= 0.3:
                for older in [n for n in pending if n < over]:
                    del pending[older]
                written |= set(files)
                store.add(checkpoint(over, task_state("a", files=files)), pending=pending.keys())
                newest = files
            for subsumed in store.release(pending.keys()):
                needed = retained_files(store).union(*(base for base, _ in pending.values()))
                assert needed.isdisjoint(subsumed.files)
                assert deleted.isdisjoint(subsumed.files)
                deleted |= set(subsumed.files)
            store.validate()
    for subsumed in store.release(()):
        deleted |= set(subsumed.files)
    assert written - deleted == retained_files(store)
