"""What a running broker says of its clients, in the log and to clients that have the right to hear it."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import RawClient, dial
from tests.support.users import PASSWORD, add_users
from tests.support.waiting import wait_until

from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import Disconnect, Publish, Suback, Subscribe, Subscription
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion

V5 = ProtocolVersion.V5
SECRET = b"correct-horse-battery"
FORGED = 'x\n{"event": "connected", "user": "root"}\r\n2026-01-01T00:00:00.000+00:00 INFO client connected'
STRANGERS = 300
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00")
RULES = '[[rule]]\nallow = ["publish", "read"]\nuser = "ann"\ntopics = "ann/#"\n'
OWN_RULE = '[[rule]]\nallow = "read"\nuser = "ops"\ntopics = "$SYS/events/#"\n'


class Broker(BrokerProcess):
    """A broker with the user ann, who may do what she likes below `ann/`."""

    def __init__(self, folder: Path) -> None:
        rules = folder / "rules.toml"
        rules.write_text(RULES + OWN_RULE)
        super().__init__(folder / "data", settings={"logging.format": "json", "authorization.rules": rules})
        add_users(self.data_dir, "ann", "ops")

    def dial(self) -> RawClient:
        return RawClient(dial(self.port))

    def events(self) -> list[dict[str, Any]]:
        """Those of clients that have been logged so far."""
        lines = [json.loads(line) for line in self.output_from(0).splitlines() if line.startswith(b"{")]
        return [line for line in lines if line["logger"] == "embermq.clients"]

    def of(self, kind: str, client_id: str) -> list[dict[str, Any]]:
        return [
            line for line in self.events() if line["event"] == kind and line.get("client_id") == client_id
        ]


@pytest.fixture
def broker(tmp_path: Path) -> Any:
    with Broker(tmp_path) as found:
        yield found


def test_who_came_who_left_and_who_was_refused_what(broker: Broker) -> None:
    ann = broker.dial()
    assert ann.enter("c1", username="ann", password=PASSWORD) == ReasonCode.SUCCESS
    ann.send(encode(Publish("other/topic", b"x", 0, 0), V5))
    ann.send(encode(Subscribe(1, (Subscription("other/#", 1),)), V5))
    assert ann.expect(Suback).reason_codes == (ReasonCode.NOT_AUTHORIZED,)
    ann.send(encode(Disconnect(ReasonCode.DISCONNECT_WITH_WILL_MESSAGE), V5))
    ann.read_to_end()
    own_port = ann.sock.getsockname()[1]
    ann.close()
    gone = broker.dial()
    assert gone.enter("c2", username="ann", password=PASSWORD) == ReasonCode.SUCCESS
    gone.close()
    guessing = broker.dial()
    assert guessing.enter("c3", username="ann", password=SECRET) == ReasonCode.BAD_USER_NAME_OR_PASSWORD
    guessing.close()
    wait_until(lambda: bool(broker.of("disconnected", "c1") and broker.of("disconnected", "c2")))

    (came,) = broker.of("connected", "c1")
    assert TIME.fullmatch(came["time"])
    about = {
        "user": "ann",
        "peer": f"127.0.0.1:{own_port}",
        "listener": f"listeners.mqtt 127.0.0.1:{broker.port}",
    }
    assert came["level"] == "info" and came["protocol"] == "5.0" and about.items() <= came.items()
    (left,) = broker.of("disconnected", "c1")
    assert about.items() <= left.items() and left["code"] == "0x04"
    assert left["reason"] == "the client disconnected: disconnect with will message"
    denials = broker.of("denied", "c1")
    assert [one["topic"] for one in denials] == ["other/topic", "other/#"]
    assert all(about.items() <= one.items() and one["code"] == "0x87" for one in denials)
    (gone_away,) = broker.of("disconnected", "c2")
    assert gone_away["reason"] == "the client closed the connection without DISCONNECT"
    (failed,) = broker.of("login failed", "c3")
    assert (failed["user"], failed["reason"]) == ("ann", "wrong password, or no such account")
    printed = broker.output_from(0)
    assert SECRET not in printed and PASSWORD not in printed


def test_events_as_messages_for_whom_a_rule_names_them(broker: Broker) -> None:
    ops = broker.dial()
    assert ops.enter("watch", username="ops", password=PASSWORD) == ReasonCode.SUCCESS
    ops.send(encode(Subscribe(1, (Subscription("$SYS/events/#", 1), Subscription("$SYS/#", 1))), V5))
    assert ops.expect(Suback).reason_codes == (1, ReasonCode.NOT_AUTHORIZED)
    ann = broker.dial()
    assert ann.enter("c1", username="ann", password=PASSWORD) == ReasonCode.SUCCESS
    ann.send(encode(Subscribe(1, (Subscription("$SYS/events/#", 1),)), V5))
    assert ann.expect(Suback).reason_codes == (ReasonCode.NOT_AUTHORIZED,)
    ann.close()
    told = [ops.expect(Publish) for _ in range(4)]
    assert {(one.qos, one.retain) for one in told} == {(0, False)}
    kinds = ["denied", "connected", "denied", "disconnected"]  # the first is its own
    assert [one.topic for one in told] == [f"$SYS/events/{kind}" for kind in kinds]
    came, denied, left = (json.loads(one.payload) for one in told[1:])
    assert TIME.fullmatch(came["time"]) and (came["client_id"], came["user"]) == ("c1", "ann")
    assert (denied["topic"], denied["code"]) == ("$SYS/events/#", "0x87")
    assert left["reason"] == "the client closed the connection without DISCONNECT"
    ops.close()


def test_no_client_writes_a_line_and_a_flood_is_counted(broker: Broker) -> None:
    forging = broker.dial()
    assert forging.enter(FORGED, username="ann", password=PASSWORD) == ReasonCode.SUCCESS
    forging.close()
    wait_until(lambda: bool(broker.of("disconnected", FORGED)))
    assert not [line for line in broker.output_from(0).splitlines() if b'"root"' in line[:40]]
    for _ in range(STRANGERS):
        stranger = broker.dial()
        stranger.send(b"\x00\x00")
        stranger.read_to_end()
        stranger.close()
    assert broker.stop() == 0
    counts: Counter[bool] = Counter()
    for line in broker.events():
        if line["event"] == "refused":
            counts["left_out" in line] += line.get("left_out", 1)
    assert counts[True] > 0 and sum(counts.values()) == STRANGERS
