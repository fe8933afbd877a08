"""Durable queues of EmberMQ for Python programs: publish, consume, settle, request and reply over plain MQTT 5; and
plain publish and subscribe.

    async with Client("broker.example", client_id="mailer-1") as client:
        queue = client.queue("tasks/email")
        await queue.publish("hello", key="user-7")
        async with queue.consume(prefetch=8) as messages:
            async for message in messages:
                await message.ack()

`client` has the connection, `queue` what one does with a queue, `message` what comes, `inbox` what nobody has taken,
`subscription` plain topics, `responses` requests that wait, `link` the one place that knows paho, `sync` the same for
programs without asyncio, `webhook` the check of a dead-letter alert. Nothing here knows the broker's code: it speaks
MQTT, as any client may. All but `sync` belongs to one event loop, and is not safe to call from another thread.
"""

from embermq_client.client import Client
from embermq_client.errors import (
    ClientError,
    ConnectFailed,
    ConnectionLost,
    ConnectRefused,
    PublishRefused,
    Refused,
    ReplyImpossible,
    RequestTimeout,
    SettleRefused,
    SubscribeRefused,
    Unconfirmed,
)
from embermq_client.message import DeadLetter, Message, QueueMessage, Response
from embermq_client.queue import Consumer, Queue
from embermq_client.subscription import TopicMessage, TopicSubscription
from embermq_client.sync import SyncClient, SyncConsumer, SyncMessage, SyncQueue, SyncSubscription
from embermq_client.webhook import SIGNATURE_HEADER, TIMESTAMP_HEADER, is_genuine

__all__ = [
    "SIGNATURE_HEADER",
    "TIMESTAMP_HEADER",
    "Client",
    "ClientError",
    "ConnectFailed",
    "ConnectRefused",
    "ConnectionLost",
    "Consumer",
    "DeadLetter",
    "Message",
    "PublishRefused",
    "Queue",
    "QueueMessage",
    "Refused",
    "ReplyImpossible",
    "RequestTimeout",
    "Response",
    "SettleRefused",
    "SubscribeRefused",
    "SyncClient",
    "SyncConsumer",
    "SyncMessage",
    "SyncQueue",
    "SyncSubscription",
    "TopicMessage",
    "TopicSubscription",
    "Unconfirmed",
    "is_genuine",
]
