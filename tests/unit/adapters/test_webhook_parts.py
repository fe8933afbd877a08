"""Which addresses an alert may go to, what is signed, and where the secret comes from."""

import hashlib
import hmac
import json
import os
import stat
from pathlib import Path

import pytest

from embermq.adapters.webhook.alerts import SecretUnusable, body_of, place_of, read_secret, signature
from embermq.adapters.webhook.posting import AddressGuard
from embermq.adapters.webhook.settings import WebhookSettings, check_settings
from embermq.model.queue_rows import Attempts, DeadLetter
from embermq.ports.dead_letter_alerts import DeadLetterAlert

REFUSED = [
    "127.0.0.1",
    "127.8.9.10",
    "::1",
    "0.0.0.0",
    "::",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "192.0.2.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "fe80::1",
    "fe80::1%eth0",
    "fc00::1",
    "fd12:3456::1",
    "ff02::1",
    "2001:db8::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a00:1",
    "2002:7f00:1::1",
    "2002:a00:1::1",
    "192.0.0.192",
    "192.88.99.1",
    "168.63.129.16",
    "::ffff:168.63.129.16",
    "fec0::1",
    "::127.0.0.1",
    "64:ff9b:1::7f00:1",
    "no address",
    "",
]


@pytest.mark.parametrize("address", REFUSED)
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    assert not AddressGuard().allows(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses_are_not(address: str) -> None:
    assert AddressGuard().allows(address)


def test_a_network_that_is_allowed_lets_its_own_addresses_through_and_no_others() -> None:
    guard = AddressGuard(["10.1.0.0/16", "fd00::/8"])
    assert guard.allows("10.1.2.3") and guard.allows("fd00::5") and guard.allows("::ffff:10.1.2.3")
    assert not guard.allows("10.2.0.1") and not guard.allows("127.0.0.1") and not guard.allows("fe80::1")
    assert guard.allows("8.8.8.8")


def test_a_signature_is_of_time_and_body() -> None:
    secret = b"0123456789abcdef"
    wanted = hmac.new(secret, b'1700000000.{"a":1}', hashlib.sha256).hexdigest()
    assert signature(secret, 1_700_000_000, b'{"a":1}') == f"sha256={wanted}"


def test_an_alert_says_where_a_dead_letter_came_from_and_nothing_of_its_body() -> None:
    attempts = Attempts(deliveries=11, failures=11, first_delivered_ms=1_000, last_error="no disk")
    letter = DeadLetter("tasks/a", "g", "max_retries", "1-2", attempts, 5_000)
    assert json.loads(body_of(DeadLetterAlert("https://x", "dlq/tasks/a", letter))) == {
        "event": "dead-letter",
        "queue": "tasks/a",
        "dead_letter_queue": "dlq/tasks/a",
        "message_id": "1-2",
        "group": "g",
        "reason": "max_retries",
        "attempts": 11,
        "first_delivered_at": 1_000,
        "moved_at": 5_000,
        "last_error": "no disk",
    }


def test_a_secret_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "webhook.secret"
    secret = read_secret(path, make=True)
    assert len(secret) == 64 and read_secret(path, make=True) == secret
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["webhook.secret"]


def test_what_a_killed_broker_left_of_its_secret_is_in_nobody_s_way(tmp_path: Path) -> None:
    (tmp_path / f"webhook.secret.{os.getpid()}.new").write_text("half a secr")
    secret = read_secret(tmp_path / "webhook.secret", make=True)
    assert len(secret) == 64 and [each.name for each in tmp_path.iterdir()] == ["webhook.secret"]


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://hooks.example/services/T0/B0/secret", "https://hooks.example"),
        ("http://hooks.example:81?token=secret", "http://hooks.example:81"),
    ],
)
def test_logs_name_the_host_of_a_webhook_alone(url: str, place: str) -> None:
    assert place_of(url) == place


@pytest.mark.parametrize("content", [b"", b"short", b"0123456789abcde\n"])
def test_a_secret_that_is_too_short_is_refused_without_being_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(SecretUnusable, match="16 or more") as caught:
        read_secret(path, make=False)
    assert "short" not in str(caught.value) and "0123" not in str(caught.value)


def test_a_secret_file_that_is_named_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(SecretUnusable, match="No such file"):
        read_secret(tmp_path / "missing", make=False)


def test_settings_that_cannot_be_are_refused_by_name() -> None:
    check_settings(WebhookSettings(allowed_networks=("127.0.0.0/8",)))
    with pytest.raises(ValueError, match=r"webhook\.allowed_networks: '10\.1\.0\.1/16'"):
        check_settings(WebhookSettings(allowed_networks=("10.1.0.1/16",)))
