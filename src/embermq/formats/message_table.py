"""What the tables of the message store have in common, whichever database they are in.

The pipeline writes them, adapters read them. On a server, which several brokers may share, rows have `log_id` besides
the columns of messages.sql: which message log they are of. And they have `topic_hash`: an index finds by it topics that
are longer than an index may hold.
"""

from base64 import b64decode
from hashlib import blake2b

import msgspec
from msgspec import Struct

from embermq.mqtt.wire.properties import Properties

SERVER_MESSAGES = "embermq_messages"
SERVER_PROGRESS = "embermq_message_progress"
"""The tables on a server. The second one has a row a log, reader and partition: how far it is, and its totals."""

COLUMNS = (
    "partition",
    "offset",
    "topic",
    "accepted_ms",
    "qos",
    "retain",
    "publisher",
    "version",
    "expires_ms",
    "properties",
    "payload",
)
"""Of one message, as messages.sql explains them."""
ARCHIVE = "archive"
"""The reader whose progress is kept beside the messages."""


class _Pair(Struct):
    name: str
    value: str


class _StoredProperties(Struct):
    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: str | None = None
    user_properties: list[_Pair] = []


def topic_hash(topic: str) -> int:
    """64 bits of a topic, signed. Two topics may share them: compare the topic as well."""
    return int.from_bytes(blake2b(topic.encode(), digest_size=8).digest(), "big", signed=True)


def properties_of(text: str | None) -> Properties | None:
    """The MQTT 5 properties from the JSON of the column `properties`."""
    if text is None:
        return None
    stored = msgspec.json.decode(text, type=_StoredProperties)
    return Properties(
        payload_format_indicator=stored.payload_format_indicator,
        message_expiry_interval=stored.message_expiry_interval,
        content_type=stored.content_type,
        response_topic=stored.response_topic,
        correlation_data=b64decode(stored.correlation_data) if stored.correlation_data is not None else None,
        user_properties=tuple((pair.name, pair.value) for pair in stored.user_properties),
    )
