"""Addresses that bring wrong credentials again and again: banned by the broker, or by fail2ban from its log."""

from __future__ import annotations

import configparser
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.forked_program import run_program
from tests.support.raw_client import RawClient, dial
from tests.support.users import PASSWORD, add_users
from tests.support.waiting import wait_until

from embermq.mqtt.wire.reason_codes import ReasonCode

ROOT = Path(__file__).parents[2]
FAILURES = 3
SUCCESS, WRONG, BANNED = ReasonCode.SUCCESS, ReasonCode.BAD_USER_NAME_OR_PASSWORD, ReasonCode.BANNED
FORGED = 'x" peer=198.51.100.1:1 listener="l" code=0x86'
HOST = r"(?P<host>[0-9a-fA-F.:]+)"
"""What fail2ban puts in place of <HOST>, as far as addresses go."""


class Broker(BrokerProcess):
    """With a listener behind a proxy, which tells where clients come from."""

    def __init__(self, folder: Path) -> None:
        self.proxied = free_port()
        super().__init__(folder / "data", constants={"embermq.app.authentication.FAILURES_FREE": 1_000})
        self.settings |= {
            "listeners.mqtt": f"127.0.0.1:{self.port},127.0.0.1:{self.proxied}",
            f'listener."127.0.0.1:{self.proxied}".proxy_protocol': "true",
            "authentication.ban_failures": FAILURES,
        }
        add_users(self.data_dir, "ann")

    def enters(self, address: str, password: bytes | str, client_id: str = "c") -> int:
        """The answer to ann from this address, "" for this machine."""
        client = RawClient(dial(self.proxied if address else self.port))
        if address:
            family, own = ("TCP6", "2001:db8::ffff") if ":" in address else ("TCP4", "192.0.2.200")
            client.send(f"PROXY {family} {address} {own} 50000 1883\r\n".encode())
        given = password if isinstance(password, bytes) else password.encode()
        code = client.enter(client_id, username="ann", password=given)
        client.close()
        return code


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("bans")) as running:
        yield running


def command(broker: Broker, *words: str) -> list[dict[str, object]]:
    done = run_program(*words, "--data-dir", broker.data_dir, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize(
    ("address", "banned"), [("192.0.2.1", "192.0.2.1"), ("2001:db8:1::7", "2001:db8:1::/64")]
)
def test_an_address_with_too_many_failures_is_banned(broker: Broker, address: str, banned: str) -> None:
    assert broker.enters(address, PASSWORD) == SUCCESS
    assert [broker.enters(address, b"wrong") for _ in range(FAILURES)] == FAILURES * [WRONG]
    wait_until(lambda: broker.enters(address, PASSWORD) == BANNED)
    assert broker.enters("192.0.2.99", PASSWORD) == SUCCESS

    (ban,) = (one for one in command(broker, "bans", "list") if one["value"] == banned)
    assert (ban["kind"], ban["reason"]) == ("address", f"{FAILURES} wrong credentials") and ban["until"]
    (change,) = (one for one in command(broker, "audit") if one["object"]["value"] == banned)  # type: ignore[index]
    assert (change["by"], change["operation"], change["outcome"]) == ("the broker", "PutBan", "done")
    assert re.search(rf'WARNING address banned address="?{re.escape(banned)}"? until=', broker.output())


def test_this_machine_is_never_banned(broker: Broker) -> None:
    assert {broker.enters("", b"wrong") for _ in range(3 * FAILURES)} == {WRONG}
    assert broker.enters("", PASSWORD) == SUCCESS


def hosts(pattern: re.Pattern[str], lines: list[str]) -> list[str]:
    return [match["host"] for match in map(pattern.search, lines) if match is not None]


def test_fail2ban_finds_the_address_and_nobody_can_put_another_one_there(broker: Broker) -> None:
    filter_file = configparser.RawConfigParser()
    assert filter_file.read(ROOT / "deploy" / "fail2ban" / "filter.d" / "embermq.conf")
    pattern = re.compile(filter_file["Definition"]["failregex"].replace("<HOST>", HOST))
    assert broker.enters("192.0.2.31", PASSWORD) == SUCCESS
    for address, client_id in (
        ("192.0.2.32", "c"),
        ("192.0.2.33", FORGED),
        ("2001:db8:2::9", "a b\\"),
        ("", ""),
    ):
        assert broker.enters(address, b"wrong", client_id) == WRONG
    wait_until(lambda: "2001:db8:2::9" in broker.output())

    lines = [line for line in broker.output().splitlines() if "192.0.2.3" in line or "2001:db8:2:" in line]
    found = hosts(pattern, lines)
    assert found == ["192.0.2.32", "192.0.2.33", "2001:db8:2::9"]
    cut = [line.partition(" ")[2] for line in lines]  # fail2ban looks at the line without its time
    assert hosts(pattern, cut) == found
    unavailable = next(line for line in lines if pattern.search(line)).replace("code=0x86", "code=0x88")
    assert pattern.search(unavailable) is None  # the broker's fault
