"""Dead-letter alerts over real sockets: signed, repeated, bounded, and never waited for."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import enumerate as threads

import pytest
from tests.support.waiting import wait_until
from tests.support.webhook_receiver import WebhookReceiver

from embermq.adapters.webhook import alerts as alerts_module
from embermq.adapters.webhook import posting
from embermq.adapters.webhook.alerts import WebhookAlerts, signature
from embermq.adapters.webhook.settings import WebhookSettings
from embermq.model.queue_rows import Attempts, DeadLetter
from embermq.ports.dead_letter_alerts import DeadLetterAlert
from embermq_client import SIGNATURE_HEADER, TIMESTAMP_HEADER, is_genuine

LOOPBACK = ("127.0.0.0/8",)
SECRET = b"a secret of thirty-two bytes...."


def alert(url: str, number: int = 1) -> DeadLetterAlert:
    letter = DeadLetter("tasks", "g", "rejected", f"1-{number:x}", Attempts(deliveries=1), 7)
    return DeadLetterAlert(url, "dlq/tasks", letter)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WebhookSettings:
    monkeypatch.setattr(alerts_module, "ATTEMPTS_MAX", 3)
    monkeypatch.setattr(alerts_module, "BACKOFF_S", 0.01)
    (tmp_path / "secret").write_bytes(SECRET + b"\n")
    return WebhookSettings(
        secret_file=str(tmp_path / "secret"),
        allowed_networks=LOOPBACK,
    )


@pytest.fixture
def alerts(settings: WebhookSettings, tmp_path: Path) -> Iterator[WebhookAlerts]:
    made = WebhookAlerts(settings, tmp_path)
    yield made
    made.close()


def made_with(settings: WebhookSettings, tmp_path: Path, **changes: object) -> WebhookAlerts:
    values = {name: getattr(settings, name) for name in settings.__struct_fields__}
    return WebhookAlerts(WebhookSettings(**(values | changes)), tmp_path)


def test_an_alert_is_posted_with_a_signature_that_its_receiver_can_check(alerts: WebhookAlerts) -> None:
    with WebhookReceiver() as receiver:
        alerts.tell(alert(receiver.url + "hook?token=7"))
        wait_until(lambda: alerts.statistics().sent == 1)
    (posted,) = receiver.posted
    assert posted.path == "/hook?token=7" and posted.headers["content-type"] == "application/json"
    assert posted.said["message_id"] == "1-1" and posted.headers["embermq-delivery"] == "1-1.7"
    assert is_genuine(SECRET, posted.headers, posted.body)
    assert is_genuine(SECRET + b"\n", posted.headers, posted.body), "as it stands in its file"
    assert not is_genuine(SECRET, posted.headers, posted.body + b" ")
    assert not is_genuine(b"another secret .", posted.headers, posted.body)
    assert not is_genuine(SECRET, posted.headers, posted.body, now_s=time.time() + 301)
    later = posted.headers | {"embermq-timestamp": str(int(posted.headers["embermq-timestamp"]) + 1)}
    assert not is_genuine(SECRET, later, posted.body)


@pytest.mark.parametrize("name", [SIGNATURE_HEADER, TIMESTAMP_HEADER])
@pytest.mark.parametrize("value", ["", "sha256=", "sha256=\udc80", "\udcff", "-1", "١٧", "9" * 5_000])
def test_headers_of_anybody_are_no_signature(name: str, value: str) -> None:
    """Servers hand over bytes that are no text as lone surrogates: that must not end in an error."""
    found = {TIMESTAMP_HEADER: "100", SIGNATURE_HEADER: signature(SECRET, 100, b"x")}
    assert is_genuine(SECRET, found, b"x", now_s=100)
    assert not is_genuine(SECRET, found | {name: value}, b"x", now_s=100)


@pytest.mark.parametrize("secret", [b"", b"\n", b"fifteen bytes.."])
def test_a_receiver_without_a_secret_is_told_so(secret: bytes) -> None:
    """What anybody can sign proves nothing."""
    found = {TIMESTAMP_HEADER: "100", SIGNATURE_HEADER: signature(secret.rstrip(b"\n"), 100, b"x")}
    with pytest.raises(ValueError, match="webhooks are signed with 16 or more"):
        is_genuine(secret, found, b"x", now_s=100)


def test_without_a_file_of_ones_own_the_secret_is_in_the_data_directory(tmp_path: Path) -> None:
    alerts = WebhookAlerts(WebhookSettings(allowed_networks=LOOPBACK), tmp_path)
    with WebhookReceiver() as receiver:
        assert not (tmp_path / "webhook.secret").exists()
        alerts.tell(alert(receiver.url))
        wait_until(lambda: alerts.statistics().sent == 1)
        alerts.close()
    secret = (tmp_path / "webhook.secret").read_bytes().strip()
    assert is_genuine(secret, receiver.posted[0].headers, receiver.posted[0].body)


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_what_says_later_is_tried_again_with_the_same_delivery(alerts: WebhookAlerts, status: int) -> None:
    with WebhookReceiver(status, status) as receiver:
        alerts.tell(alert(receiver.url))
        wait_until(lambda: alerts.statistics().sent == 1)
    assert len(receiver.posted) == 3
    assert {posted.headers["embermq-delivery"] for posted in receiver.posted} == {"1-1.7"}


def test_attempts_are_bounded(alerts: WebhookAlerts) -> None:
    with WebhookReceiver(*[500] * 9) as receiver:
        alerts.tell(alert(receiver.url))
        wait_until(lambda: alerts.statistics().failed == 1)
        assert len(receiver.posted) == 3
        assert alerts.statistics().waiting == 0


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 401, 404])
def test_a_plain_no_and_a_redirect_are_the_end(alerts: WebhookAlerts, status: int) -> None:
    with WebhookReceiver(status) as receiver:
        alerts.tell(alert(receiver.url))
        wait_until(lambda: alerts.statistics().failed == 1)
        assert [posted.path for posted in receiver.posted] == ["/"]


def test_a_fault_of_ours_costs_one_alert_and_not_its_address(
    alerts: WebhookAlerts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with WebhookReceiver() as receiver:
        with monkeypatch.context() as patched:
            patched.setattr(posting, "_look_up", broken)
            alerts.tell(alert(receiver.url))
            wait_until(lambda: alerts.statistics().failed == 1)
        alerts.tell(alert(receiver.url, 2))
        wait_until(lambda: alerts.statistics().sent == 1)
    assert alerts.statistics().waiting == 0


def test_addresses_that_are_not_public_are_never_connected_to(
    settings: WebhookSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alerts = made_with(settings, tmp_path, allowed_networks=())
    with WebhookReceiver() as receiver, socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
        port = other.getsockname()[1]
        urls = [receiver.url, f"http://localhost:{receiver.port}/", f"http://[::1]:{port}/"]
        urls += [
            f"http://2130706433:{receiver.port}/",
            f"http://0x7f.1:{receiver.port}/",
            "http://169.254.169.254/",
        ]
        for url in urls:
            alerts.tell(alert(url + "?token=hidden"))
        wait_until(lambda: alerts.statistics().refused == len(urls))
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()
    alerts.close()
    assert receiver.posted == [] and alerts.statistics().sent == 0
    assert "not public" in caplog.text and "hidden" not in caplog.text


def test_the_address_that_was_checked_is_the_one_that_is_called(
    settings: WebhookSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that means another address at each look-up gains nothing: there is one look-up an attempt."""
    asked: list[str] = []

    def changing(host: str, port: int, **more: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "127.0.0.2"
        return [(2, 1, 6, "", ("10.0.0.1", port)), (2, 1, 6, "", (address, port))]

    monkeypatch.setattr(posting, "getaddrinfo", changing)
    alerts = made_with(settings, tmp_path, allowed_networks=("127.0.0.1/32",))
    with WebhookReceiver() as receiver:
        alerts.tell(alert(f"http://webhook.example:{receiver.port}/"))
        wait_until(lambda: alerts.statistics().sent == 1)
        assert receiver.posted[0].headers["host"] == f"webhook.example:{receiver.port}"
        alerts.tell(alert(f"http://webhook.example:{receiver.port}/"))
        wait_until(lambda: alerts.statistics().refused == 1)
    alerts.close()
    assert len(asked) == 2


def test_a_dead_webhook_holds_up_nobody_and_what_waits_for_it_is_bounded(
    settings: WebhookSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts_module, "WAITING_MAX", 10)
    monkeypatch.setattr(alerts_module, "TIMEOUT_S", 30.0)
    alerts = WebhookAlerts(settings, tmp_path)
    with WebhookReceiver() as dead, WebhookReceiver() as live:
        dead.free.clear()
        began = time.monotonic()
        for number in range(5_000):
            alerts.tell(alert(dead.url, number))
        assert time.monotonic() - began < 30.0, "as long as the dead one is waited for"
        assert alerts.statistics().waiting == 10 and alerts.statistics().dropped == 4_990
        alerts.tell(alert(live.url))
        wait_until(lambda: len(live.posted) == len(dead.posted) == 1)
        dead.free.set()
        wait_until(lambda: alerts.statistics().sent == 11)
        assert [body["message_id"] for body in dead.bodies()] == [f"1-{number:x}" for number in range(10)]
    alerts.close()


def test_an_answer_that_does_not_come_is_not_waited_for_long(
    settings: WebhookSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts_module, "TIMEOUT_S", 1.5)
    monkeypatch.setattr(alerts_module, "ATTEMPTS_MAX", 2)
    alerts = WebhookAlerts(settings, tmp_path)
    with WebhookReceiver() as receiver:
        receiver.free.clear()
        alerts.tell(alert(receiver.url))
        wait_until(lambda: alerts.statistics().failed == 1)
        assert len(receiver.posted) == 2
    alerts.close()


def test_nonsense_for_an_answer_is_no_success(
    settings: WebhookSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts_module, "ATTEMPTS_MAX", 1)
    alerts = WebhookAlerts(settings, tmp_path)
    answers = [b"", b"hello\r\n", b"HTTP/1.1 999 X\r\n\r\n", b"x" * 100_000, b"HTTP/1.1 100 C\r\n\r\n"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        for count, answer in enumerate(answers, 1):
            alerts.tell(alert(f"http://127.0.0.1:{server.getsockname()[1]}/"))
            connection, _ = server.accept()
            with connection:
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                wait_until(lambda count=count: alerts.statistics().failed == count)  # type: ignore[misc]
    alerts.close()
    assert alerts.statistics().sent == 0


def test_an_interim_answer_is_not_the_answer(alerts: WebhookAlerts) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        alerts.tell(alert(f"http://127.0.0.1:{server.getsockname()[1]}/"))
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 202 Accepted\r\n\r\n")
            wait_until(lambda: alerts.statistics().sent == 1)
            request = connection.recv(65_536)
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST / HTTP/1.1\r\n") and json.loads(body)["queue"] == "tasks"


def test_a_secret_that_cannot_be_read_sends_nothing(
    settings: WebhookSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alerts = made_with(settings, tmp_path, secret_file=str(tmp_path / "missing"))
    with WebhookReceiver() as receiver:
        alerts.tell(alert(receiver.url))
        wait_until(lambda: alerts.statistics().failed == 1)
        assert receiver.posted == []
    alerts.close()
    assert "missing" in caplog.text


def test_closing_gives_up_what_waits_and_leaves_no_thread(
    settings: WebhookSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts_module, "TIMEOUT_S", 60.0)
    alerts = WebhookAlerts(settings, tmp_path)
    with WebhookReceiver() as receiver:
        receiver.free.clear()
        for number in range(3):
            alerts.tell(alert(receiver.url, number))
        wait_until(lambda: len(receiver.posted) == 1)
        alerts.close()
        assert alerts.statistics().dropped == 3 and alerts.statistics().waiting == 0
        alerts.tell(alert(receiver.url))
        assert alerts.statistics().dropped == 4
    assert not [thread for thread in threads() if thread.name == "webhook"]


def test_an_address_that_takes_no_connection_leaves_time_for_the_next_one(
    settings: WebhookSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name may lead to several, and one of them may be a machine that is away."""
    monkeypatch.setattr(alerts_module, "ATTEMPTS_MAX", 1)
    alerts = WebhookAlerts(settings, tmp_path)
    with WebhookReceiver() as receiver, ExitStack() as stack:
        away = stack.enter_context(socket.create_server(("127.0.0.2", receiver.port), backlog=0))
        stack.enter_context(socket.create_connection(away.getsockname()))  # it is full with this one
        entries = [(2, 1, 6, "", (address, receiver.port)) for address in ("127.0.0.2", "127.0.0.1")]
        monkeypatch.setattr(posting, "getaddrinfo", lambda *_, **__: entries)
        alerts.tell(alert(f"http://webhook.example:{receiver.port}/"))
        wait_until(lambda: alerts.statistics().waiting == 0)
        assert len(receiver.posted) == alerts.statistics().sent == 1
    alerts.close()
