"""The API over TLS: HTTPS and gRPC, certificates in place of tokens, and their renewal."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.certificates import Authority
from tests.support.forked_program import run_program
from tests.support.rpc_client import RpcClient
from tests.support.waiting import wait_until

from embermq.admin import queue_admin_pb2 as pb

ANSWER_S = 60.0


class Broker(BrokerProcess):
    """`https` and `rpcs` take everyone and look at certificates; `certified` is for those with one."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "certificates")
        self.certificate = self.authority.server("broker")
        self.https, self.rpcs, self.certified = free_port(), free_port(), free_port()
        super().__init__(
            folder / "data",
            settings={
                "listeners.https": f"127.0.0.1:{self.https},127.0.0.1:{self.certified}",
                "listeners.grpcs": f"127.0.0.1:{self.rpcs}",
                "tls.cert": self.certificate,
                "tls.client_certificates": "optional",
                "tls.ca": self.authority.certificate,
                f'listener."127.0.0.1:{self.certified}".client_certificates': "required",
            },
        )

    def tokens(self, *words: str) -> str:
        done = run_program("tokens", *words, "--data-dir", self.data_dir, timeout_s=ANSWER_S)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def rpc(self, client: Path | None = None, token: str = "") -> RpcClient:
        chain = client.read_bytes() if client is not None else None
        tls = grpc.ssl_channel_credentials(self.authority.certificate.read_bytes(), chain, chain)
        return RpcClient(self.rpcs, token, tls=tls)


def ask(port: int, context: ssl.SSLContext, path: str, token: str = "", **said: str) -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    headers |= said
    with closing(
        http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=ANSWER_S)
    ) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("api-tls")) as broker:
        yield broker
        assert "Traceback" not in broker.output()


def test_what_http_answers_is_there_over_tls(broker: Broker) -> None:
    trusting = broker.authority.trusting()
    assert ask(broker.https, trusting, "/ready")[0] == 200
    assert b"embermq_" in ask(broker.https, trusting, "/metrics")[1]
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(broker.https, ssl.create_default_context(), "/ready")


def test_who_speaks_no_tls_holds_nobody_up(broker: Broker) -> None:
    with closing(socket.create_connection(("127.0.0.1", broker.https), ANSWER_S)) as plain:
        plain.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
        assert ask(broker.https, broker.authority.trusting(), "/ready")[0] == 200
        assert b"HTTP/1.1" not in plain.recv(100)


def test_tokens_and_names_in_certificates_open_both(broker: Broker) -> None:
    secret = broker.tokens("create", "reader", "--scope", "read")
    assert "pump-7" in broker.tokens("create", "pump", "--scope", "admin", "--certificate", "pump-7")
    certificate = broker.authority.client()
    anybody, pump = broker.authority.trusting(), broker.authority.trusting(certificate)
    path = "/api/v1/queues"
    assert ask(broker.https, anybody, path)[0] == 401
    assert ask(broker.https, anybody, path, token=secret)[0] == 200
    assert ask(broker.https, pump, path)[0] == 200
    assert ask(broker.https, pump, path, token="wrong")[0] == 401, "a token that is shown counts"
    own = f"https://127.0.0.1:{broker.https}"
    for page in ({"Origin": "https://page.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
        assert ask(broker.https, pump, path, **page)[0] == 401, "a browser shows it for any page"
    assert ask(broker.https, pump, path, **{"Origin": own, "Sec-Fetch-Site": "same-origin"})[0] == 200
    assert ask(broker.certified, pump, "/ready")[0] == 200
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask(broker.certified, anybody, "/ready")
    with broker.rpc() as stranger, broker.rpc(token=secret) as reader, broker.rpc(certificate) as admin:
        assert stranger.refused("ListQueues", pb.ListQueuesRequest())[0] == "UNAUTHENTICATED"
        assert reader.refused("PurgeQueue", pb.PurgeQueueRequest(name="q"))[0] == "PERMISSION_DENIED"
        assert admin.refused("PurgeQueue", pb.PurgeQueueRequest(name="q"))[0] == "NOT_FOUND"
        assert not reader("ListQueues", pb.ListQueuesRequest()).queues
        assert not admin("ListQueues", pb.ListQueuesRequest()).queues
    listed = json.loads(broker.tokens("list", "--json"))
    assert [(one["name"], one["certificate"]) for one in listed] == [("pump", "pump-7"), ("reader", "")]
    broker.tokens("revoke", "pump")
    assert ask(broker.https, pump, path)[0] == 401


def test_a_renewed_certificate_is_shown_after_sighup(broker: Broker) -> None:
    def serial() -> str:
        with (
            closing(socket.create_connection(("127.0.0.1", broker.https), ANSWER_S)) as raw,
            broker.authority.trusting().wrap_socket(raw, server_hostname="127.0.0.1") as tls,
        ):
            return str((tls.getpeercert() or {})["serialNumber"])

    with closing(
        http.client.HTTPSConnection(
            "127.0.0.1", broker.https, context=broker.authority.trusting(), timeout=ANSWER_S
        )
    ) as staying:
        staying.request("GET", "/health")
        assert staying.getresponse().read()
        before = serial()
        broker.authority.server("broker")
        os.kill(broker.pid, signal.SIGHUP)
        wait_until(lambda: serial() != before, what="the new certificate")
        staying.request("GET", "/health")
        assert staying.getresponse().status == 200
    broker.certificate.write_text("no certificate")
    os.kill(broker.pid, signal.SIGHUP)
    wait_until(
        lambda: "keeps its old certificates: tls.cert" in broker.output(), what="the refusal in the log"
    )
    assert serial()
    broker.authority.server("broker")


def test_off_loopback_it_wants_tls_or_a_word(tmp_path: Path) -> None:
    words = ["check-config", "--data-dir", str(tmp_path), "--set", "listeners.http=0.0.0.0:8080"]
    refused = run_program(*words)
    assert refused.returncode == 2 and "listeners.https" in refused.stderr
    told = 'listener."0.0.0.0:8080".plaintext=true'
    assert run_program(*words, "--set", told).returncode == 0
