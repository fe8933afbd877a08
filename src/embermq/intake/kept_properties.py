"""What the properties of a PUBLISH mean for the message that is kept of it."""

from embermq.mqtt.wire.properties import Properties


def deadline_of(properties: Properties, now_ms: int) -> int:
    """The deadline that the Message Expiry Interval sets; 0 = none."""
    interval_s = properties.message_expiry_interval
    return 0 if interval_s is None else now_ms + interval_s * 1000


def kept_properties(properties: Properties) -> Properties | None:
    """What travels with the message: not the alias, which belongs to the connection [MQTT-3.3.2-7]."""
    if properties.topic_alias is None:
        return properties
    kept = Properties(
        payload_format_indicator=properties.payload_format_indicator,
        message_expiry_interval=properties.message_expiry_interval,
        content_type=properties.content_type,
        response_topic=properties.response_topic,
        correlation_data=properties.correlation_data,
        user_properties=properties.user_properties,
    )
    return None if kept == Properties() else kept
