"""What the properties of a PUBLISH mean for the message that is kept of it."""

from embermq.mqtt.wire.properties import Properties, of_message


def deadline_of(properties: Properties, now_ms: int) -> int:
    """The deadline that the Message Expiry Interval sets; 0 = none."""
    interval_s = properties.message_expiry_interval
    return 0 if interval_s is None else now_ms + interval_s * 1000


def kept_properties(properties: Properties) -> Properties | None:
    """What travels with the message: not the alias, which belongs to the connection [MQTT-3.3.2-7]."""
    if properties.topic_alias is None:
        return properties
    return of_message(properties)
