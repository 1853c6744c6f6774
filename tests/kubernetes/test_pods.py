"""The manifests of ``deploy/kubernetes`` on a node of Kubernetes, while their pods are deleted.

Each test prints what it has done, and the rows that it has compared.
"""

from __future__ import annotations

import random
import time

import pytest
from tests.kit.waiting import wait_until
from tests.kubernetes.orders import DRIVERS, EXECUTORS, PATIENCE_S, Orders, name_of

pytestmark = [pytest.mark.kubernetes, pytest.mark.kill, pytest.mark.timeout(3600)]

_DELETED = 5
_GRACE_S = 60


def test_a_deployment_is_exact_through_ten_deleted_pods(orders: Orders) -> None:
    """Drivers and executors in turn, each second one by force, while rows are under way."""
    chance = random.Random(1)
    orders.apply("deployment")
    orders.driver()
    for number in range(2 * _DELETED):
        before = orders.copied()
        orders.place.land(10)
        orders.wait_for_copies(before + 1)
        driver = orders.driver()
        force = number % 4 in (1, 2)
        if number % 2:
            took_s = orders.delete(driver, force=force)
            orders.driver(after=driver)
            assert force or "is suspended" in orders.log(driver)
        else:
            victim = chance.choice([name_of(pod) for pod in orders.pods(EXECUTORS)])
            took_s = orders.delete(victim, force=force)
        assert took_s < _GRACE_S
    orders.drain()


def test_a_new_image_goes_on_from_the_savepoint_of_the_old_one(orders: Orders) -> None:
    """Which the old pod has taken on SIGTERM; the executors run the new image, too."""
    orders.configure({"weir.on-sigterm": "savepoint"})
    orders.place.land(10)
    orders.apply("deployment", grace_s=600)
    old = orders.driver()
    orders.wait_for_copies(1)
    orders.place.land(10)
    orders.apply("deployment", grace_s=600, version=2)
    new = orders.driver(after=old)
    orders.wait_for(old, r"savepoint \d+ completed")
    orders.say(orders.wait_for(new, "recovered from savepoint .*"))
    images = {pod["spec"]["containers"][0]["image"] for pod in orders.pods(EXECUTORS)}
    assert images == {"registry.example/orders:2"}
    assert orders.kubectl("exec", new, "--", "printenv", "VERSION") == "2\n"
    orders.drain()


def test_a_driver_that_hangs_is_restarted_by_the_kubelet(orders: Orders) -> None:
    """By the probes: it is not ready at first, and then not alive."""
    orders.place.land(10)
    orders.apply("deployment")
    driver = orders.driver()
    orders.wait_for_copies(1)
    orders.kubectl("exec", driver, "--", "sh", "-c", "kill -STOP $(cat /proc/1/task/1/children)")
    began = time.monotonic()
    wait_until(lambda: not orders.ready(), "the pod is not ready", within_s=PATIENCE_S)
    orders.say(f"it is not ready after {time.monotonic() - began:.0f} s")
    wait_until(lambda: _restarts(orders) == 1, "the container is restarted", within_s=PATIENCE_S)
    assert "Liveness probe failed" in orders.kubectl("get", "events")
    assert orders.driver() == driver
    orders.say(f"the same pod is ready again after {time.monotonic() - began:.0f} s")
    orders.place.land(5)
    orders.drain()


def test_a_job_goes_on_in_another_pod_and_ends_once(orders: Orders) -> None:
    """A pod that is deleted by force is replaced; one that ends well is not."""
    orders.place.land(20)
    orders.apply("job", numbers="bounded")
    orders.wait_for_copies(1)
    [victim] = [name_of(pod) for pod in orders.pods("job-name=orders")]
    orders.delete(victim, force=True)
    orders.wait_for_runs(1)
    [pod] = orders.pods("job-name=orders")
    assert pod["status"]["phase"] == "Succeeded"
    orders.wait_for(name_of(pod), "has finished")
    orders.compare()
    orders.kubectl("delete", "job", "orders")
    orders.apply("job", numbers="bounded")
    orders.wait_for_runs(1)
    [again] = orders.pods("job-name=orders")
    orders.wait_for(name_of(again), "has already finished; nothing was run")
    orders.compare()


def test_runs_of_a_cron_job_take_what_is_there_and_end(orders: Orders) -> None:
    """The controller starts one each minute; one is deleted by force, and replaced."""
    orders.apply("cronjob")
    for number in range(3):
        orders.place.land(8)
        if number == 1:
            orders.wait_for_copies(orders.copied() + 1)
            for pod in orders.pods("job-name"):
                if pod["status"]["phase"] == "Running":
                    orders.delete(name_of(pod), force=True)
        orders.wait_for_copies(orders.place.rows().total())
        orders.wait_for_runs(number + 1)
    orders.kubectl("patch", "cronjob", "orders", "--patch", '{"spec": {"suspend": true}}')
    wait_until(lambda: orders.runs("Complete") == orders.runs(), "all runs end")
    orders.compare(minutes=orders.place.closed_minutes())


def _restarts(orders: Orders) -> int:
    [driver] = orders.pods(DRIVERS)
    return int(driver["status"]["containerStatuses"][0]["restartCount"])
