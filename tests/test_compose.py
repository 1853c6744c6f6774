"""The Compose file: what it starts is pinned, on loopback only, and finds its files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

COMPOSE = Path(__file__).parents[1] / "deploy" / "compose"
SERVICES = ("kafka", "postgres", "prometheus", "grafana")


def loaded(name: str) -> Any:
    """A YAML file of the folder."""
    return yaml.safe_load((COMPOSE / name).read_text())


def services() -> dict[str, dict[str, Any]]:
    """The services by name."""
    found: dict[str, dict[str, Any]] = loaded("compose.yaml")["services"]
    return found


def test_the_compose_file_has_its_services_in_exact_versions() -> None:
    """Tags that never mean another image tomorrow."""
    assert set(services()) == set(SERVICES)
    for name, service in services().items():
        assert re.fullmatch(r"[a-z/]+:v?\d+(\.\d+)+", service["image"]), name


def test_every_service_listens_on_loopback_only() -> None:
    """Ports are published there; who shares the machine's network is told to listen there."""
    for name, service in services().items():
        if service.get("network_mode") == "host":
            given = [*service.get("command", []), *service.get("environment", {}).values()]
            assert any("127.0.0.1" in str(one) for one in given), name
        else:
            assert service["ports"], name
            assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name


def test_every_file_that_is_mounted_exists_and_every_volume_is_declared() -> None:
    """Docker would make a directory of a file that is missing."""
    declared = loaded("compose.yaml")["volumes"]
    for name, service in services().items():
        for mount in service.get("volumes", []):
            source, target, *mode = mount.split(":")
            assert target.startswith("/"), name
            if source.startswith("."):
                assert (COMPOSE / source).is_file() and mode == ["ro"], mount
            else:
                assert source in declared, mount


def test_kafka_on_one_node_can_begin_a_transaction() -> None:
    """The defaults for the topics of offsets and transactions need three nodes."""
    given = services()["kafka"]["environment"]
    factors = [value for name, value in given.items() if name.endswith(("_FACTOR", "_MIN_ISR"))]
    assert factors == [1, 1, 1]
    assert given["KAFKA_ADVERTISED_LISTENERS"] == "PLAINTEXT://127.0.0.1:9092"


def test_grafana_asks_prometheus_and_prometheus_asks_the_job() -> None:
    """By the addresses on which they listen."""
    (source,) = loaded("grafana/datasources.yml")["datasources"]
    listens = next(one for one in services()["prometheus"]["command"] if "listen-address" in one)
    assert source["url"] == f"http://{listens.partition('=')[2]}"
    (scraped,) = loaded("prometheus.yml")["scrape_configs"]
    assert "127.0.0.1:8081" in scraped["static_configs"][0]["targets"]
    mounted = [mount.split(":")[1] for mount in services()["grafana"]["volumes"]]
    (provider,) = loaded("grafana/dashboards.yml")["providers"]
    assert f"{provider['options']['path']}/weir.json" in mounted
