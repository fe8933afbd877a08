"""Topic aliases of one connection: those the client gave us, and those we give it [MQTT 5.0, 3.3.2.3.4]."""

from embermq.mqtt.wire.encoder import with_topic_alias
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.sessions.forwarded_frames import PACKET_ID_BYTES, Frame, frame_bytes
from embermq.sessions.link import Link

ALIAS_BYTES = 3
"""What an alias takes in a packet; a shorter topic is not worth one."""


def resolve_alias(link: Link, topic: str, properties: Properties | None, alias_max: int) -> str | None:
    """The topic that a PUBLISH of the client means; None when the connection was ended for its alias."""
    alias = properties.topic_alias if properties is not None else None
    if alias is None and topic:
        return topic
    if alias is None or alias > alias_max:
        link.disconnect(ReasonCode.TOPIC_ALIAS_INVALID, f"topic alias {alias}, the maximum is {alias_max}")
        return None
    if link.aliases is None:
        link.aliases = {}
    if topic:
        link.aliases[alias] = topic
        return topic
    known = link.aliases.get(alias)
    if known is None:
        link.disconnect(ReasonCode.PROTOCOL_ERROR, f"topic alias {alias} was never given a topic")
    return known


def aliased(link: Link, topic: str, frame: Frame) -> Frame:
    """The frame with a topic alias for a link that takes aliases. The first topics get one each; a topic is named once
    with its alias, then the alias stands for it [MQTT-3.3.2-11]."""
    aliases = link.aliases_out
    if aliases is None or len(topic) <= ALIAS_BYTES:
        return frame
    alias = aliases.get(topic)
    if alias is not None:
        return with_topic_alias(frame, alias, keep_topic=False)
    if len(aliases) >= link.aliases_out_max:
        return frame
    alias = len(aliases) + 1
    named = with_topic_alias(frame, alias, keep_topic=True)
    if frame_bytes(named) + PACKET_ID_BYTES > link.packet_bytes_max:
        return frame
    aliases[topic] = alias
    return named
