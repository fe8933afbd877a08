"""What is in deploy/ for containers, against the broker that they run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from embermq.app.config import load_configuration

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
VARIABLE = re.compile(r"\$\{(\w+):\?[^}]*\}")
SERVICE_KEYS = {
    "image", "read_only", "tmpfs", "cap_drop", "security_opt", "restart", "stop_grace_period", "ports", "volumes",
    "environment", "depends_on", "command", "healthcheck",
}  # fmt: skip


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def test_images_and_secrets_are_named_by_who_runs_it(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {"broker", "kafka", "redis", "postgres", "etcd"}
    for name, service in compose["services"].items():
        assert set(service) <= SERVICE_KEYS, name
        assert VARIABLE.fullmatch(service["image"]), name
        assert (name == "broker") == ("ports" in service), "only the broker is reached from outside"
        for key, value in service.get("environment", {}).items():
            if "PASSWORD" in key or "AUTH" in key:
                assert VARIABLE.fullmatch(value), (name, key)
            if "@" in value and "://" in value:
                assert VARIABLE.fullmatch(value.rpartition("@")[0].rpartition("/")[2].partition(":")[2]), key
    assert VARIABLE.fullmatch(compose["services"]["redis"]["command"][-1])


def test_what_a_service_waits_for_and_keeps_is_there(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, condition in services["broker"]["depends_on"].items():
        assert condition["condition"] in ("service_started", "service_healthy")
        assert condition["condition"] == "service_started" or "healthcheck" in services[name]
    kept = {each.partition(":")[0] for service in services.values() for each in service["volumes"]}
    assert kept == set(compose["volumes"])


def test_the_broker_takes_its_settings(compose: dict[str, Any]) -> None:
    broker = compose["services"]["broker"]["environment"]
    given = {name: VARIABLE.sub("secret", value) for name, value in broker.items()}
    settings = load_configuration(environment=given).settings
    hosts = {re.sub(r"^.*[/@]([a-z]+):\d+.*$", r"\1", url) for name, url in given.items() if "://" in url}
    assert hosts == {"kafka", "redis", "postgres", "etcd"} == set(compose["services"]) - {"broker"}
    assert settings.stores.log.startswith("kafka://") and settings.cluster.etcd.endswith("/compose")


def test_the_container_names_no_image_is_not_root_and_its_settings_are_taken() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE}"}
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
    given = dict(re.findall(r"(EMBERMQ_\w+)=(\S+)", text))
    settings = load_configuration(environment=given).settings
    assert settings.data_dir == "/var/lib/embermq" and f"VOLUME {settings.data_dir}\n" in text
    assert "127.0.0.1:8080/ready" in text and "8080" in str(settings.listeners.http)
