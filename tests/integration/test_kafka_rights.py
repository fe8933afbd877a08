"""What a broker's user may not do with application logs in a Kafka is told, and passes when it may."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from tests.support.application_log_writer import ApplicationLogWriter, HandLoop, HandReader
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_gate import KafkaGate
from tests.support.kafka_rights import AUTHORIZER, give_documented_rights, refusals
from tests.support.kafka_server import KafkaServer
from tests.support.mqtt_client import MqttClient, run
from tests.support.redis_server import RedisServer
from tests.support.servers import on_servers
from tests.support.waiting import wait_for, wait_until

from embermq.adapters.kafka.address import KafkaSettings, parse_address
from embermq.adapters.kafka.application_feeds import KafkaApplicationFeeds
from embermq.adapters.kafka.application_topics import ApplicationTopics, LogProperties
from embermq.adapters.kafka.client import WatchedAdmin
from embermq.adapters.kafka.shared_feeds import KafkaSharedFeeds
from embermq.formats.application_logs import ApplicationLogNames
from embermq.mqtt.wire.packets import Subscription
from embermq.ports.application_logs import FoundLog

GROUP = "application-shared-msg-consumer-group-g"


class Guarded:
    """A server with rights, as its own administrator and as the user "ember" see it."""

    def __init__(self, server: KafkaServer) -> None:
        self.server = server
        self.settings = KafkaSettings(prefix=server.prefix())
        self.address = parse_address(server.url)
        self.names = ApplicationLogNames(self.settings.prefix)
        admin = WatchedAdmin(self.address, self.settings)
        self.topics = ApplicationTopics(admin, self.names, LogProperties(packet_bytes_max=1024 * 1024))
        self.writer = ApplicationLogWriter(server.own_bootstrap)
        self.loop = HandLoop()

    def _right(self, kind: ResourceType, name: str, what: AclOperation) -> AclBinding:
        literal = ResourcePatternType.LITERAL
        return AclBinding(kind, name, literal, "User:ember", "*", what, AclPermissionType.ALLOW)

    def allows(self, kind: ResourceType, name: str, *operations: AclOperation) -> None:
        rights = [self._right(kind, name, one) for one in operations]
        for answer in self.server.admin.create_acls(rights).values():
            answer.result(30)

    def log(self, client_id: str) -> str:
        """One that may be looked at, and not be read."""
        log = self.names.client_log(client_id)
        allowed = (AclOperation.CREATE, AclOperation.DESCRIBE, AclOperation.DELETE)
        self.allows(ResourceType.TOPIC, log, *allowed)
        wait_until(lambda: isinstance(self.topics.ensure({log: 1})[log], FoundLog), 30, "the rights hold")
        return log


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    gate = KafkaGate(username="ember", password="right")
    with KafkaServer(tmp_path_factory.mktemp("rights"), gate=gate, settings=AUTHORIZER) as found:
        yield found


@pytest.fixture
def guarded(server: KafkaServer) -> Guarded:
    return Guarded(server)


def test_a_broker_needs_no_right_on_groups_to_read_its_log_again(
    server: KafkaServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Kafka's client asks for the coordinator of a group also when it reads without one, and is refused."""
    prefix = server.prefix()
    give_documented_rights(server, "ember", prefix, but=ResourceType.GROUP)
    settings = on_servers(server, redis_server, prefix) | {"stores.log": server.url}
    topics = [f"rights/{number}" for number in range(8)]

    async def publishes() -> None:
        device, publisher = MqttClient("device"), MqttClient("publisher")
        await device.connect(broker.port, expiry_s=600)
        await device.subscribe(Subscription("rights/+", 1))
        device.abort()
        await device.ended
        await publisher.connect(broker.port)
        for topic in topics:
            await publisher.publish(topic, b"x", qos=1)
        publisher.abort()
        await publisher.ended

    async def returns() -> None:
        device = MqttClient("device")
        await device.connect(broker.port, clean_start=False)
        await wait_for(lambda: len(device.messages) == len(topics), 30, "all have come")
        device.close()
        await device.ended

    with BrokerProcess(tmp_path, settings=settings) as broker:
        run(publishes())
        broker.kill()
        broker.start()
        run(returns())
        assert broker.output().count("GROUP_AUTHORIZATION_FAILED") <= 2, (
            "of the group that is written to, a line each"
        )
    group = f"Group:LITERAL:{prefix}-reader"
    wait_until(lambda: any(group in line for line in refusals(server)), 30, "its group is refused")


def test_a_log_that_may_not_be_read_is_told_and_read_when_it_may(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    log, other = guarded.log("app"), guarded.log("other")
    guarded.allows(ResourceType.TOPIC, other, AclOperation.READ)
    feeds = KafkaApplicationFeeds(guarded.address, guarded.settings, guarded.loop.post)
    readers = [HandReader(), HandReader()]
    try:
        for reader, name in zip(readers, (log, other), strict=True):
            reader.feed = feeds.open(name, {0: 0}, reader)
        guarded.loop.run_until(lambda: "TOPIC_AUTHORIZATION_FAILED" in feeds.failing, 30, "it is told")
        guarded.writer.write(other, [b"x"])
        guarded.loop.run_until(lambda: readers[1].came, 30, "others are read for")
        assert log in feeds.failing
        guarded.writer.write(log, [b"y"])
        guarded.allows(ResourceType.TOPIC, log, AclOperation.READ)
        guarded.loop.run_until(lambda: readers[0].came, 30, "it is read")
        assert feeds.failing == ""
    finally:
        feeds.close()
    assert caplog.text.count(log) == 1


def test_a_right_that_is_given_is_seen_although_nothing_comes(guarded: Guarded) -> None:
    log = guarded.log("idle")
    feeds = KafkaApplicationFeeds(guarded.address, guarded.settings, guarded.loop.post)
    reader = HandReader()
    try:
        reader.feed = feeds.open(log, {0: 0}, reader)
        guarded.loop.run_until(lambda: "TOPIC_AUTHORIZATION_FAILED" in feeds.failing, 30, "it is told")
        guarded.allows(ResourceType.TOPIC, log, AclOperation.READ)
        guarded.loop.run_until(lambda: not feeds.failing, 30, "it may be read")
    finally:
        feeds.close()


def test_a_member_that_may_not_join_its_group_is_told_and_joins_when_it_may(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    log = guarded.log("shared")
    group = f"{GROUP}-{log}"
    guarded.allows(ResourceType.TOPIC, log, AclOperation.READ)
    feeds = KafkaSharedFeeds(guarded.address, guarded.settings, guarded.loop.post)
    try:
        member = HandReader()
        member.feed = feeds.join(group, log, member)
        guarded.loop.run_until(lambda: "GROUP_AUTHORIZATION_FAILED" in feeds.failing, 30, "it is told")
        guarded.writer.write(log, [b"x"])
        guarded.allows(ResourceType.GROUP, group, AclOperation.READ)
        guarded.loop.run_until(lambda: member.came, 60, "it is read")
        assert feeds.failing == ""
    finally:
        feeds.close()
    assert group in caplog.text


def test_a_right_to_a_shared_log_that_is_given_is_seen_although_nothing_comes(guarded: Guarded) -> None:
    log = guarded.log("quiet")
    group = f"{GROUP}-{log}"
    guarded.allows(ResourceType.GROUP, group, AclOperation.READ)
    feeds = KafkaSharedFeeds(guarded.address, guarded.settings, guarded.loop.post)
    member = HandReader()
    try:
        member.feed = feeds.join(group, log, member)
        guarded.loop.run_until(lambda: "TOPIC_AUTHORIZATION_FAILED" in feeds.failing, 60, "it is told")
        guarded.allows(ResourceType.TOPIC, log, AclOperation.READ)
        guarded.loop.run_until(lambda: not feeds.failing, 60, "it may be read")
    finally:
        feeds.close()
