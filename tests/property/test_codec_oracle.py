"""The codec against another library's bytes: what `mqtt5` writes we read, what we write it reads.

The order of properties is free, so bytes are compared by length and by what they mean.
"""

from __future__ import annotations

from typing import Any

import mqtt5
from hypothesis import given, settings
from tests.property import packet_strategies as packets

from embermq.mqtt.wire.decoder import Decoder
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion, Role

V5 = ProtocolVersion.V5


def users(properties: Properties) -> list[tuple[str, str]]:
    return list(properties.user_properties)


def will_of(will: Will) -> Any:
    properties = will.properties or Properties()
    return mqtt5.Will(
        will.topic,
        payload=will.payload,
        qos=mqtt5.QoS(will.qos),
        retain=will.retain,
        payload_format_indicator=properties.payload_format_indicator or 0,
        message_expiry_interval=properties.message_expiry_interval,
        content_type=properties.content_type,
        response_topic=properties.response_topic,
        correlation_data=properties.correlation_data,
        will_delay_interval=properties.will_delay_interval or 0,
        user_properties=users(properties),
    )


def connect_of(packet: Connect) -> Any:
    properties = packet.properties or Properties()
    maximum = properties.receive_maximum
    problem = properties.request_problem_information
    return mqtt5.ConnectPacket(
        packet.client_id,
        username=packet.username,
        password=packet.password,
        clean_start=packet.clean_start,
        will=None if packet.will is None else will_of(packet.will),
        keep_alive=packet.keep_alive_s,
        session_expiry_interval=properties.session_expiry_interval or 0,
        request_problem_info=True if problem is None else problem,
        request_response_info=bool(properties.request_response_information),
        receive_max=65_535 if maximum is None else maximum,
        topic_alias_max=properties.topic_alias_maximum or 0,
        max_packet_size=properties.maximum_packet_size,
        user_properties=users(properties),
    )


def publish_of(packet: Publish) -> Any:
    properties = packet.properties or Properties()
    return mqtt5.PublishPacket(
        packet.topic,
        packet.payload,
        qos=mqtt5.QoS(packet.qos),
        retain=packet.retain,
        packet_id=packet.packet_id or None,
        duplicate=packet.dup,
        payload_format_indicator=properties.payload_format_indicator or 0,
        message_expiry_interval=properties.message_expiry_interval,
        content_type=properties.content_type,
        response_topic=properties.response_topic,
        correlation_data=properties.correlation_data,
        subscription_ids=list(properties.subscription_identifiers),
        topic_alias=properties.topic_alias,
        user_properties=users(properties),
    )


ACKNOWLEDGEMENTS: dict[type[Packet], tuple[Any, Any]] = {
    Puback: (mqtt5.PubAckPacket, mqtt5.PubAckReasonCode),
    Pubrec: (mqtt5.PubRecPacket, mqtt5.PubRecReasonCode),
    Pubrel: (mqtt5.PubRelPacket, mqtt5.PubRelReasonCode),
    Pubcomp: (mqtt5.PubCompPacket, mqtt5.PubCompReasonCode),
}


def other_of(packet: Packet) -> Any:
    """The same packet as a value of the other library."""
    match packet:
        case Connect():
            return connect_of(packet)
        case Publish():
            return publish_of(packet)
        case Pingreq():
            return mqtt5.PingReqPacket()
        case Pingresp():
            return mqtt5.PingRespPacket()
    properties = packet.properties or Properties()
    told: dict[str, Any] = {"reason_str": properties.reason_string, "user_properties": users(properties)}
    match packet:
        case Puback() | Pubrec() | Pubrel() | Pubcomp():
            kind, codes = ACKNOWLEDGEMENTS[type(packet)]
            return kind(packet.packet_id, reason_code=codes(packet.reason_code), **told)
        case Subscribe():
            return mqtt5.SubscribePacket(
                packet.packet_id,
                [subscription_of(entry) for entry in packet.subscriptions],
                subscription_id=next(iter(properties.subscription_identifiers), None),
                user_properties=users(properties),
            )
        case Unsubscribe():
            return mqtt5.UnsubscribePacket(
                packet.packet_id, list(packet.topic_filters), user_properties=users(properties)
            )
        case Suback():
            codes = [mqtt5.SubAckReasonCode(code) for code in packet.reason_codes]
            return mqtt5.SubAckPacket(packet.packet_id, codes, **told)
        case Unsuback():
            codes = [mqtt5.UnsubAckReasonCode(code) for code in packet.reason_codes]
            return mqtt5.UnsubAckPacket(packet.packet_id, codes, **told)
        case Disconnect():
            return mqtt5.DisconnectPacket(
                reason_code=mqtt5.DisconnectReasonCode(packet.reason_code),
                session_expiry_interval=properties.session_expiry_interval,
                server_reference=properties.server_reference,
                **told,
            )
        case Auth():
            return mqtt5.AuthPacket(
                reason_code=mqtt5.AuthReasonCode(packet.reason_code),
                authentication_method=properties.authentication_method,
                authentication_data=properties.authentication_data,
                **told,
            )
    raise AssertionError(packet)


def subscription_of(entry: Subscription) -> Any:
    return mqtt5.TopicFilter(
        entry.topic_filter,
        max_qos=mqtt5.QoS(entry.qos),
        no_local=entry.no_local,
        retain_as_published=entry.retain_as_published,
        retain_handling=mqtt5.RetainHandling(entry.retain_handling),
    )


def decode_one(role: Role, data: bytes) -> Packet:
    if data[0] >> 4 in (1, 2):
        decoder = Decoder(role, version=None if role is Role.SERVER else V5)
    elif role is Role.SERVER:
        decoder = Decoder(role, version=V5)
    else:
        decoder = Decoder(role, version=V5)
        decoder.feed(encode(Connack(False, 0), V5))
    found = decoder.feed(data)
    assert decoder.error is None, (decoder.error, data)
    assert len(found) == 1
    return found[0]


def check(role: Role, packet: Packet) -> None:
    ours = encode(packet, V5)
    read, size = mqtt5.read(memoryview(ours))
    assert size == len(ours)
    expected = other_of(packet)
    assert read == expected
    theirs = expected.write()
    # Their values cannot say "absent" where the protocol has a default, so compare what both mean.
    assert other_of(decode_one(role, theirs)) == expected
    assert other_of(decode_one(role, ours)) == expected


@settings(max_examples=3 * settings().max_examples)
@given(packets.of_client(V5))
def test_packets_of_clients(packet: Packet) -> None:
    check(Role.SERVER, packet)


@settings(max_examples=3 * settings().max_examples)
@given(packets.of_server(V5))
def test_packets_of_servers(packet: Packet) -> None:
    check(Role.CLIENT, packet)


@settings(max_examples=2 * settings().max_examples)
@given(packets.connects(V5))
def test_connect(packet: Connect) -> None:
    check(Role.SERVER, packet)


@given(packets.connacks(V5))
def test_connack(packet: Connack) -> None:
    read, size = mqtt5.read(memoryview(encode(packet, V5)))
    assert size == len(encode(packet, V5))
    assert isinstance(read, mqtt5.ConnAckPacket)
    properties = packet.properties or Properties()
    assert read.session_present == packet.session_present
    assert read.reason_code == packet.reason_code
    assert read.session_expiry_interval == properties.session_expiry_interval
    assert read.assigned_client_id == properties.assigned_client_identifier
    assert read.server_keep_alive == properties.server_keep_alive
    assert read.user_properties == users(properties)
    again = decode_one(Role.CLIENT, read.write())
    assert isinstance(again, Connack)
    assert (again.session_present, again.reason_code) == (packet.session_present, packet.reason_code)


@given(packets.disconnects(V5, Role.SERVER))
def test_disconnect_of_client(packet: Disconnect) -> None:
    check(Role.SERVER, packet)


@given(packets.disconnects(V5, Role.CLIENT))
def test_disconnect_of_server(packet: Disconnect) -> None:
    check(Role.CLIENT, packet)
