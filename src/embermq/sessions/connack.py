"""What CONNACK says of the connection to a client of MQTT 5."""

from embermq.mqtt.wire.packets import Connect
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.sessions.link import Link
from embermq.sessions.session import PACKET_IDS, Session
from embermq.sessions.settings import Feature, MqttSettings
from embermq.sessions.state import BrokerState


def connack_properties(
    state: BrokerState, link: Link, session: Session, packet: Connect, client_id: str
) -> Properties | None:
    """None for a client of MQTT 3."""
    if packet.version != ProtocolVersion.V5:
        return None
    settings, max_qos = state.settings, state.terms_of(link).max_qos
    asked_s = (packet.properties.session_expiry_interval if packet.properties is not None else None) or 0
    limit_s = settings.keep_alive_max_s
    capped = limit_s < PACKET_IDS and (packet.keep_alive_s == 0 or packet.keep_alive_s > limit_s)
    proved = link.authentication
    return Properties(
        session_expiry_interval=None if session.expiry_interval_s == asked_s else session.expiry_interval_s,
        receive_maximum=settings.receive_maximum,
        maximum_qos=max_qos if max_qos < 2 else None,
        retain_available=_unless_off(settings, "retain"),
        maximum_packet_size=settings.packet_bytes_max,
        assigned_client_identifier=client_id if not packet.client_id else None,
        topic_alias_maximum=settings.topic_alias_maximum or None,
        wildcard_subscription_available=_unless_off(settings, "wildcards"),
        shared_subscription_available=_unless_off(settings, "shared"),
        server_keep_alive=limit_s if capped else None,
        response_information=_response_information(settings, packet, client_id),
        authentication_method=proved.method if proved is not None else None,  # [MQTT-4.12.0-5]
        authentication_data=proved.data if proved is not None else None,
    )


def _response_information(settings: MqttSettings, packet: Connect, client_id: str) -> str | None:
    """Only for who asks for it [MQTT-3.1.2-28]."""
    asked = packet.properties is not None and packet.properties.request_response_information
    text = settings.response_information
    return text.replace("%c", client_id) if asked and text else None


def _unless_off(settings: MqttSettings, feature: Feature) -> bool | None:
    """What CONNACK says of a feature: nothing when it is there."""
    return False if feature in settings.unavailable else None
