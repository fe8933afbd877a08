"""Who published a retained message is known on every session store, also after a kill."""

from __future__ import annotations

from pathlib import Path

from tests.stores.conftest import talk_until_killed
from tests.support.broker_process import BrokerProcess
from tests.support.dialogue import arrived, client, talk
from tests.support.users import PASSWORD, add_users

from embermq.mqtt.wire.packets import Subscription

EVERYTHING = '[[rule]]\nallow = "all"\n'


def test_a_retained_message_goes_with_the_right_to_publish_it(broker: BrokerProcess, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(EVERYTHING)
    broker.settings["authorization.rules"] = rules
    add_users(broker.data_dir, "ann", "bob")
    broker.start()

    async def before() -> None:
        for user in ("ann", "bob"):
            publisher = await client(broker, f"p-{user}", username=user, password=PASSWORD)
            assert await publisher.publish(f"t/{user}", user.encode(), qos=1, retain=True) in (0, 0x10)
        rules.write_text('[[rule]]\ndeny = "publish"\nuser = "ann"\n' + EVERYTHING)

    async def after() -> None:
        reader = await client(broker, "r", username="bob", password=PASSWORD)
        await reader.subscribe(Subscription("t/#", 1))
        await arrived(reader, 1)
        await reader.ping()
        assert [message.payload for message in reader.messages] == [b"bob"]

    talk_until_killed(broker, before)
    talk(after)
