"""Whose session it is, on every session store: nobody else gets it, also after a kill, until it is given away."""

from __future__ import annotations

import asyncio

from tests.stores.conftest import talk_until_killed
from tests.support.broker_process import BrokerProcess
from tests.support.dialogue import DAY_S, arrived, client, gone, make, present, talk
from tests.support.forked_program import run_program
from tests.support.mqtt_client import MqttClient
from tests.support.users import PASSWORD, add_users

from embermq.mqtt.wire.packets import Subscription
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion

COUNT = 5
TIMEOUT_S = 120


async def comes(
    broker: BrokerProcess, user: str, *, clean: bool = False, version: ProtocolVersion = ProtocolVersion.V5
) -> MqttClient:
    """The user's client under ann's client id, let in or not."""
    found = make("ann-1", version=version)
    await found.connect(
        broker.port,
        clean_start=clean,
        expiry_s=DAY_S,
        username=user or None,
        password=PASSWORD if user else None,
    )
    return found


def code(found: MqttClient) -> int:
    assert found.connack is not None
    return found.connack.reason_code


async def asks(broker: BrokerProcess, *words: str) -> tuple[int, str]:
    done = await asyncio.to_thread(run_program, *words, "--data-dir", broker.data_dir, timeout_s=TIMEOUT_S)
    return done.returncode, done.stdout + done.stderr


async def all_are_refused(broker: BrokerProcess, *users: str) -> None:
    for user in users:
        for clean in (True, False):
            assert code(await comes(broker, user, clean=clean)) == ReasonCode.NOT_AUTHORIZED
        assert code(await comes(broker, user, clean=True, version=ProtocolVersion.V311)) == 5


def test_a_session_is_its_users_until_it_is_given_away(broker: BrokerProcess) -> None:
    add_users(broker.data_dir, "ann", "bob")
    broker.start()

    async def before() -> None:
        ann = await comes(broker, "ann")
        await ann.subscribe(Subscription("t", 1))
        await all_are_refused(broker, "bob")  # a client that is connected stays so
        await ann.ping()
        await gone(ann)
        publisher = await client(broker, "p", username="bob", password=PASSWORD)
        for number in range(COUNT):
            await publisher.publish("t", b"%d" % number, qos=1)

    async def after() -> None:
        await all_are_refused(broker, "bob", "")
        question = ("acl", "check", "--connect", "--user", "bob", "--client-id", "ann-1")
        exit_code, told = await asks(broker, *question)
        assert exit_code == 1 and "denied: connect ann-1\n  its session belongs to ann" in told
        exit_code, told = await asks(broker, "sessions", "give", "ann-1", "bob")
        assert (exit_code, told) == (0, "ann-1 belongs to bob\n")
        assert (await asks(broker, *question))[0] == 0

    async def at_last() -> None:
        await all_are_refused(broker, "ann")
        bob = await comes(broker, "bob")
        assert present(bob)
        await arrived(bob, COUNT)
        assert [message.payload for message in bob.messages] == [b"%d" % number for number in range(COUNT)]
        exit_code, told = await asks(broker, "sessions", "give", "nobody", "bob")
        assert exit_code == 1 and "there is no session of the client id 'nobody'" in told
        exit_code, told = await asks(broker, "sessions", "give", "ann-1", "")
        assert exit_code == 2 and "a user name has 1 to 65535 bytes" in told

    talk_until_killed(broker, before)
    talk_until_killed(broker, after)
    talk(at_last)
