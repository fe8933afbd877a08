"""What listens on loopback for Spark answers nobody who has no secret: every account of the machine gets that far."""

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from embermq.pipeline.errors import PipelineSettingsError
from embermq.pipeline.session import authentication_options, cluster_secret, jvm_process
from embermq.pipeline.settings import DriverSettings, PipelineSettings

ANSWER_S = 60
RPC_REQUEST, RPC_RESPONSE = 3, 4
"""Types of Spark's messages (org.apache.spark.network.protocol.Message)."""
REFUSED = b"(refused)"


def listening_ports(pid: int) -> list[int]:
    """Of TCP, by that process."""
    files = Path(f"/proc/{pid}/fd").iterdir()
    own = {os.readlink(file) for file in files if file.exists() or file.is_symlink()}
    found: list[int] = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                found.append(int(fields[1].rpartition(":")[2], 16))
    return found


def answer_to(port: int, request: bytes) -> bytes:
    """What a peer without a secret gets first; `REFUSED` when the connection ends."""
    with socket.create_connection(("127.0.0.1", port), ANSWER_S) as peer:
        try:
            peer.sendall(request)
            return peer.recv(4_096) or REFUSED
        except ConnectionError:
            return REFUSED


def rpc_question(spark: SparkSession, port: int) -> bytes:
    """Ask the driver whether an endpoint exists: what everybody asks first who wants to send it orders."""
    gateway: Any = spark.sparkContext._gateway
    java = gateway.jvm
    kind = java.java.lang.Class.forName("org.apache.spark.rpc.netty.RpcEndpointVerifier$CheckExistence")
    words = gateway.new_array(java.java.lang.Object, 1)
    words[0] = "HeartbeatReceiver"
    serialised = java.java.io.ByteArrayOutputStream()
    stream = java.java.io.ObjectOutputStream(serialised)
    stream.writeObject(kind.getConstructors()[0].newInstance(words))
    stream.flush()
    name = b"endpoint-verifier"
    to = b"\1" + struct.pack(">H9si", 9, b"127.0.0.1", port) + struct.pack(">H", len(name)) + name
    body = b"\0" + to + bytes(serialised.toByteArray())
    frame = struct.pack(">Bqi", RPC_REQUEST, 1, len(body)) + body
    return struct.pack(">q", 8 + len(frame)) + frame + b"\n" * 3  # so that py4j has whole lines


@pytest.mark.promise("pipeline-16")
def test_sparks_own_ports_answer_nobody_who_has_no_secret(spark: SparkSession) -> None:
    ports = listening_ports(jvm_process(spark).pid)
    driver = int(spark.conf.get("spark.driver.port") or 0)
    assert driver in ports and len(ports) >= 3, "the driver, blocks, py4j"
    question = rpc_question(spark, driver)
    for port in ports:
        answer = answer_to(port, question)
        assert answer[8:9] != bytes([RPC_RESPONSE]), f"port {port} has answered: {answer!r}"
    for port in ports:  # and py4j's command for a static method
        answer = answer_to(port, b"c\nz:java.lang.System\ncurrentTimeMillis\ne\n")
        assert not answer.startswith(b"!yL"), f"port {port} has answered: {answer!r}"


@pytest.mark.promise("pipeline-16")
def test_nobody_without_the_token_speaks_to_what_the_jvm_calls_in_python(spark: SparkSession) -> None:
    gateway: Any = spark.sparkContext._gateway
    port = gateway._callback_server.server_socket.getsockname()[1]
    assert port in listening_ports(os.getpid())
    gateway.gateway_property.pool.put(object(), "what-foreachBatch-was-given")
    for request in (
        b"g\nwhat-foreachBatch-was-given\ne\n",
        b"A\nwrong\ne\ng\nwhat-foreachBatch-was-given\ne\n",
    ):
        assert not answer_to(port, request).startswith(b"!y"), "py4j's word for yes"
        assert "what-foreachBatch-was-given" in gateway.gateway_property.pool


@pytest.mark.promise("pipeline-16")
@pytest.mark.parametrize("master", ["local", "local[3]", "yarn", "k8s://https://h:6443", "spark://h:7077"])
def test_every_master_authenticates(master: str) -> None:
    options = authentication_options(PipelineSettings(master=master))
    assert options["spark.authenticate"] == "true" and options["spark.network.crypto.enabled"] == "true"
    assert not any("secret" in name for name in options), "options stand on a command line"


def refused_secrets(tmp_path: Path) -> Iterator[tuple[str, str]]:
    (tmp_path / "short").write_text("short\n")
    yield str(tmp_path / "short"), "has 5 characters"
    yield str(tmp_path / "none"), "cannot read"


@pytest.mark.promise("pipeline-16")
def test_the_secret_of_a_cluster_comes_from_a_file(tmp_path: Path) -> None:
    def secret(path: str, master: str = "spark://h:7077") -> str:
        return cluster_secret(DriverSettings(master=master, spark_secret_file=path))

    good = tmp_path / "good"
    good.write_text("0123456789abcdef\n")
    assert secret(str(good)) == "0123456789abcdef"
    assert secret(str(good), "yarn") == secret("", "local") == ""
    for path, reason in refused_secrets(tmp_path):
        with pytest.raises(PipelineSettingsError, match=f"pipeline.spark_secret_file: .*{reason}"):
            secret(path)
