"""The benchmarks that need no Spark run at all, and say no when a target is missed."""

from __future__ import annotations

import pytest
from benchmarks import coordinator


def test_every_part_of_a_checkpoint_has_its_cost() -> None:
    """Trigger, acknowledgements and completion each take time, and nothing else is in the whole."""
    cost = coordinator.measure(10, 1)
    parts = (cost.trigger_s, cost.acknowledge_s, cost.complete_s)
    assert all(part > 0 for part in parts)
    assert cost.whole_s == sum(parts)


@pytest.mark.parametrize(
    ("target", "value", "code"),
    [
        (None, 0, 0),
        ("SCALING_TARGET", 0, 1),
        ("ACKNOWLEDGEMENTS_TARGET", 10**9, 1),
    ],
)
def test_the_coordinator_benchmark_ends_well_only_if_both_targets_are_met(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    target: str | None,
    value: int,
    code: int,
) -> None:
    """Its last two lines are the verdict, its exit code the sum of it."""
    monkeypatch.setattr(coordinator, "_ROUNDS", {1: 2, 2: 2})
    monkeypatch.setattr(coordinator, "SCALING_TARGET", 10**6)
    monkeypatch.setattr(coordinator, "ACKNOWLEDGEMENTS_TARGET", 1)
    monkeypatch.setattr(coordinator, "describe_machine", lambda: "machine")
    if target is not None:
        monkeypatch.setattr(coordinator, target, value)
    assert coordinator.main([]) == code
    *_, scaling, acknowledgements = capsys.readouterr().out.splitlines()
    assert scaling.startswith("coordinator_scaling ratio=")
    assert acknowledgements.startswith("coordinator_acknowledgements per_second=")
