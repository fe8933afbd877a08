"""Dead-letter alerts from a publish to the webhook, with a real broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.metrics import metric
from tests.support.mqtt_client import run
from tests.support.queue_worker import queue_broker, worker
from tests.support.waiting import wait_for, wait_until
from tests.support.webhook_receiver import WebhookReceiver

from embermq_client import is_genuine

pytestmark = pytest.mark.promise("queues-36")


def queues(receiver: WebhookReceiver, *names: str) -> str:
    return "\n".join(
        f'[[queues]]\nname = "{name}"\npartitions = 1\ndlq_config.alert_webhook = "{receiver.url}{name}"'
        for name in names
    )


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with WebhookReceiver() as made:
        yield made


def broker_for(receiver: WebhookReceiver, folder: Path, **settings: object) -> BrokerProcess:
    given = {"webhook__allowed_networks": "127.0.0.0/8"} | settings
    return queue_broker(folder, queues(receiver, "told", "also"), **given)


async def rejected_alone(broker: BrokerProcess) -> None:
    await reject(broker, "told", b"m")


async def reject(broker: BrokerProcess, queue: str, *payloads: bytes) -> list[str]:
    """Publish, be given and reject each; their ids."""
    consumer = await worker(broker, "failing-1")
    await consumer.consumes(f"$queue/{queue}", prefetch=str(len(payloads)))
    await consumer.enqueues(f"$queue/{queue}", *payloads)
    ids = []
    for _ in payloads:
        taken = await consumer.next()
        assert await consumer.says("reject", taken, queue=f"$queue/{queue}", reason="no use") == (0, "")
        ids.append(taken.id)
    consumer.close()
    return ids


def test_each_dead_letter_is_told_signed_and_without_its_body(
    receiver: WebhookReceiver, tmp_path: Path
) -> None:
    async def scenario() -> None:
        ids = await reject(broker, "told", b"secret body 1", b"secret body 2")
        await reject(broker, "untold", b"x")
        await wait_for(lambda: len(receiver.posted) == 2)
        assert [said["message_id"] for said in receiver.bodies()] == ids

    with broker_for(receiver, tmp_path) as broker:
        run(scenario())
        wait_until(lambda: metric(broker, "dead_letter_alerts") == 2)
        assert metric(broker, "dead_letter_alerts_waiting") == 0
    first = receiver.posted[0]
    assert first.path == "/told" and b"secret" not in first.body
    said = first.said
    assert (said["queue"], said["dead_letter_queue"], said["group"]) == ("told", "dlq/told", "failing")
    assert (said["reason"], said["attempts"], said["last_error"]) == ("rejected", 1, "no use")
    assert 0 <= time.time() * 1000 - said["moved_at"] < 60_000
    secret = (tmp_path / "data" / "webhook.secret").read_bytes().strip()
    assert is_genuine(secret, first.headers, first.body)


def test_a_dead_webhook_slows_neither_the_queue_nor_another_webhook(
    receiver: WebhookReceiver, tmp_path: Path
) -> None:
    async def scenario() -> None:
        await reject(broker, "dead", *(b"%d" % number for number in range(30)))
        ids = await reject(broker, "told", b"m")
        await wait_for(lambda: len(receiver.posted) == 1)
        assert receiver.bodies()[0]["message_id"] == ids[0]
        letters = await worker(broker, "watch-1")
        await letters.consumes("$queue/dlq/dead", prefetch="50")
        assert len(await letters.take(30)) == 30

    with WebhookReceiver() as dead:
        dead.free.clear()
        text = f"{queues(receiver, 'told')}\n{queues(dead, 'dead')}"
        with queue_broker(tmp_path, text, webhook__allowed_networks="127.0.0.0/8") as broker:
            run(scenario())
            assert metric(broker, "dead_letter_alerts_waiting") > 20
            assert {body["message_id"] for body in receiver.bodies()} == {receiver.bodies()[0]["message_id"]}


def test_private_addresses_are_not_called_unless_allowed(receiver: WebhookReceiver, tmp_path: Path) -> None:
    with queue_broker(tmp_path, queues(receiver, "told")) as broker:
        run(rejected_alone(broker))
        wait_until(lambda: metric(broker, "dead_letter_alerts") == 1)
        assert receiver.posted == []
        assert "not public" in broker.output()


def test_alerts_that_were_not_taken_come_again(tmp_path: Path) -> None:
    with WebhookReceiver(500, 503) as receiver, broker_for(receiver, tmp_path) as broker:
        run(rejected_alone(broker))
        wait_until(lambda: len(receiver.posted) == 3)
        assert len({posted.headers["embermq-delivery"] for posted in receiver.posted}) == 1
