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


def test_compose_makes_a_cluster_with_a_spare_node(compose: dict[str, Any]) -> None:
    found = yaml.safe_load((DEPLOY / "compose.cluster.yaml").read_text())
    nodes = found["services"]
    slots = set()
    for name, service in nodes.items():
        assert set(service) <= SERVICE_KEYS, name
        given = {key: VARIABLE.sub("secret", value) for key, value in service["environment"].items()}
        settings = load_configuration(environment=given).settings
        assert (settings.cluster.node, settings.cluster.advertise) == (name, f"{name}:7946")
        slots.add(settings.cluster.slots)
    assert slots == {len(nodes) - 1}
    own = compose["services"]["broker"]["environment"]
    assert own.items() <= nodes["broker"]["environment"].items(), "what a broker alone has is not lost"
    ports = [
        *compose["services"]["broker"]["ports"],
        *(port for each in nodes.values() for port in each.get("ports", ())),
    ]
    assert len({port.partition(":")[0] for port in ports}) == len(nodes)
    kept = {each.partition(":")[0] for service in nodes.values() for each in service.get("volumes", ())}
    assert kept == set(found["volumes"])


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    """By kind, those of clients and of nodes for services."""
    found = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "embermq.yaml").read_text()))
    services = {each["metadata"]["name"]: each for each in found if each["kind"] == "Service"}
    return services | {each["kind"]: each for each in found if each["kind"] != "Service"}


def test_kubernetes_runs_one_node_more_than_serve_and_keeps_that_many(manifests: dict[str, Any]) -> None:
    pods = manifests["StatefulSet"]["spec"]
    (container,) = pods["template"]["spec"]["containers"]
    given = {each["name"]: each.get("value", "embermq-0") for each in container["env"]}
    advertised = given["EMBERMQ_CLUSTER__ADVERTISE"]
    for name, value in {"EMBERMQ_CLUSTER__NODE": "embermq-0", "POD_NAMESPACE": "cars"}.items():
        advertised = advertised.replace(f"$({name})", value)
    assert advertised == f"embermq-0.{pods['serviceName']}.cars.svc:7946"
    given |= {
        "EMBERMQ_CLUSTER__ADVERTISE": advertised,
        "EMBERMQ_CLUSTER__ETCD": "etcd://etcd:2379/cars",
        "EMBERMQ_STORES__LOG": "kafka://kafka:9092",
        "EMBERMQ_STORES__SESSION": "redis://redis:6379",
    }
    del given["POD_NAMESPACE"]
    settings = load_configuration(environment=given).settings
    assert pods["replicas"] == settings.cluster.slots + 1
    assert manifests["PodDisruptionBudget"]["spec"]["minAvailable"] == settings.cluster.slots - 1
    assert "127.0.0.1:8080" in str(settings.listeners.http), "what the probes ask"
    for probe, path in (("startup", "health"), ("liveness", "health"), ("readiness", "ready")):
        words = container[f"{probe}Probe"]["exec"]["command"]
        assert words[:2] == ["python3", "-c"] and f"127.0.0.1:8080/{path}" in words[2]
        compile(words[2], probe, "exec")
    names = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert names == {"mqtts": 8883, "nodes": 7946}
    assert f":{names['nodes']}" in settings.cluster.listen
    volumes = pods["template"]["spec"]["volumes"] + [
        each["metadata"] for each in pods["volumeClaimTemplates"]
    ]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert set(mounts) == {each["name"] for each in volumes}
    assert settings.cluster.cert.startswith(mounts["nodes"]) and settings.tls.cert.startswith(mounts["tls"])
    assert mounts["data"] in (DEPLOY / "Containerfile").read_text()


def test_kubernetes_sends_clients_to_those_that_are_ready_and_nodes_to_all(manifests: dict[str, Any]) -> None:
    labels = manifests["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    clients, nodes = manifests["embermq"]["spec"], manifests["embermq-nodes"]["spec"]
    assert clients["selector"] == nodes["selector"] == labels
    assert nodes["publishNotReadyAddresses"] and "publishNotReadyAddresses" not in clients
    assert manifests["StatefulSet"]["spec"]["serviceName"] == "embermq-nodes"
    for kind in ("PodDisruptionBudget", "StatefulSet"):
        assert manifests[kind]["spec"]["selector"]["matchLabels"] == labels
    security = manifests["StatefulSet"]["spec"]["template"]["spec"]["securityContext"]
    assert (
        security["runAsNonRoot"]
        and f"USER {security['runAsUser']}:" in (DEPLOY / "Containerfile").read_text()
    )
    # A rolling update waits for each to be ready, which one that stands by never is.
    assert manifests["StatefulSet"]["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_the_container_names_no_image_is_not_root_and_its_settings_are_taken() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE}"}
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
    given = dict(re.findall(r"(EMBERMQ_\w+)=(\S+)", text))
    settings = load_configuration(environment=given).settings
    assert settings.data_dir == "/var/lib/embermq" and f"VOLUME {settings.data_dir}\n" in text
    assert "127.0.0.1:8080/ready" in text and "8080" in str(settings.listeners.http)
