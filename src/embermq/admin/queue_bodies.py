"""Bodies of messages in queues, as operators see them."""

from __future__ import annotations

from base64 import b64encode

import msgspec
from msgspec import Struct

from embermq.admin.queue_values import PeekedMessage
from embermq.model.message import Message
from embermq.mqtt.value import replace
from embermq.queues.inspection import MessageView

PEEKED_BYTES_MAX = 64 * 1024
"""Bytes of one body that are shown."""
UTF8_BYTES_MAX = 4


class ShownBody(Struct, frozen=True):
    """What is shown of a message: the rest of a large payload is let go of as soon as it is there."""

    message: Message
    piece: bytes
    size: int


def shown_body(message: Message) -> ShownBody:
    """Keep of a message what is shown: its payload up to PEEKED_BYTES_MAX bytes."""
    size = len(message.payload)
    if size <= PEEKED_BYTES_MAX:
        return ShownBody(message, message.payload, size)
    return ShownBody(replace(message, payload=b""), bytes(message.payload[:PEEKED_BYTES_MAX]), size)


def peeked(view: MessageView, body: ShownBody | None) -> PeekedMessage:
    """A message with what is known of its body, None when it cannot be read any more."""
    if body is None:
        return PeekedMessage(about=view, publisher="", payload_bytes=0, properties={})
    message, piece = body.message, body.piece
    properties = msgspec.to_builtins(message.properties) if message.properties is not None else {}
    shown: dict[str, str] = {}
    try:
        shown["payload"] = piece.decode()
    except UnicodeDecodeError as error:
        if len(piece) < body.size and error.start >= len(piece) - UTF8_BYTES_MAX:
            shown["payload"] = piece[: error.start].decode()
        else:
            shown["payload_base64"] = b64encode(piece).decode()
    return PeekedMessage(
        about=view,
        publisher=message.publisher,
        payload_bytes=body.size,
        properties={name: value for name, value in properties.items() if value not in (None, (), [])},
        **shown,
    )
