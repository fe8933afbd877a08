"""Hypothesis strategies for every packet that may go in one direction of one version."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from embermq.mqtt.wire import reason_codes
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
from embermq.mqtt.wire.properties import Properties, PropertyPlace
from embermq.mqtt.wire.version import ProtocolVersion, Role

V31, V311, V5 = ProtocolVersion.V31, ProtocolVersion.V311, ProtocolVersion.V5
P = PropertyPlace

u16 = st.integers(0, 0xFFFF)
u32 = st.integers(0, 0xFFFF_FFFF)
positive_u16 = st.integers(1, 0xFFFF)
positive_u32 = st.integers(1, 0xFFFF_FFFF)
identifiers = st.integers(1, 268_435_455)
qos_levels = st.integers(0, 2)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
binaries = st.binary(max_size=20)
pairs = st.tuples(texts, texts)

levels = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0+#/"), max_size=4)
topics = st.lists(levels, min_size=1, max_size=5).map("/".join).filter(bool)
plain_filters = st.builds(
    lambda parts, end: "/".join([*parts, *end]),
    st.lists(st.one_of(levels, st.just("+")), max_size=4),
    st.sampled_from([["#"], ["+"], ["x"]]),
).filter(lambda text: not text.startswith("$share/"))
shared_filters = st.builds(
    "$share/{}/{}".format,
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0+#/"), min_size=1, max_size=3),
    plain_filters,
)
filters = st.one_of(plain_filters, shared_filters)

_VALUES: dict[str, tuple[int, SearchStrategy[object]]] = {
    "payload_format_indicator": (P.PUBLISH, st.integers(0, 1)),
    "message_expiry_interval": (P.PUBLISH | P.WILL, u32),
    "content_type": (P.PUBLISH | P.WILL, texts),
    "response_topic": (P.PUBLISH | P.WILL, topics),
    "correlation_data": (P.PUBLISH | P.WILL, binaries),
    "session_expiry_interval": (P.CONNECT | P.CONNACK, u32),
    "assigned_client_identifier": (P.CONNACK, texts),
    "server_keep_alive": (P.CONNACK, u16),
    "authentication_method": (P.AUTH, texts),
    "authentication_data": (P.AUTH, binaries),
    "request_problem_information": (P.CONNECT, st.booleans()),
    "will_delay_interval": (P.WILL, u32),
    "request_response_information": (P.CONNECT, st.booleans()),
    "response_information": (P.CONNACK, texts),
    "server_reference": (P.CONNACK | P.DISCONNECT, texts),
    "reason_string": (
        sum(P) & ~(P.CONNECT | P.WILL | P.PUBLISH | P.SUBSCRIBE | P.UNSUBSCRIBE),
        texts,
    ),
    "receive_maximum": (P.CONNECT | P.CONNACK, positive_u16),
    "topic_alias_maximum": (P.CONNECT | P.CONNACK, u16),
    "topic_alias": (P.PUBLISH, positive_u16),
    "maximum_qos": (P.CONNACK, st.integers(0, 1)),
    "retain_available": (P.CONNACK, st.booleans()),
    "user_properties": (sum(P), st.lists(pairs, max_size=3).map(tuple)),
    "maximum_packet_size": (P.CONNECT | P.CONNACK, positive_u32),
    "wildcard_subscription_available": (P.CONNACK, st.booleans()),
    "subscription_identifier_available": (P.CONNACK, st.booleans()),
    "shared_subscription_available": (P.CONNACK, st.booleans()),
}


def properties(place: PropertyPlace, reader: Role = Role.SERVER) -> SearchStrategy[Properties | None]:
    """None or at least one property, of those that may stand at a place."""
    optional = {name: values for name, (places, values) in _VALUES.items() if places & place}
    if place is P.SUBSCRIBE:
        optional["subscription_identifiers"] = st.tuples(identifiers)
    if place is P.PUBLISH and reader is Role.CLIENT:
        optional["subscription_identifiers"] = st.lists(identifiers, max_size=3).map(tuple)
    required: dict[str, SearchStrategy[object]] = {}
    if place is P.AUTH:
        required["authentication_method"] = optional.pop("authentication_method")
    built = st.fixed_dictionaries(required, optional=optional).map(_from_fields)
    return built if required else st.one_of(st.none(), built)


def _from_fields(fields: dict[str, object]) -> Properties | None:
    made = Properties(**fields)  # type: ignore[arg-type]
    return None if made == Properties() else made


def _codes(allowed: frozenset[int]) -> SearchStrategy[int]:
    return st.sampled_from(sorted(int(code) for code in allowed))


def _code_lists(allowed: frozenset[int]) -> SearchStrategy[tuple[int, ...]]:
    return st.lists(_codes(allowed), min_size=1, max_size=5).map(tuple)


def connects(version: ProtocolVersion) -> SearchStrategy[Connect]:
    v5 = version is V5
    none: SearchStrategy[Properties | None] = st.none()
    wills = st.builds(Will, topics, binaries, qos_levels, st.booleans(), properties(P.WILL) if v5 else none)
    credentials = st.one_of(
        st.just((None, None)),
        st.tuples(texts, st.one_of(st.none(), binaries)),
        st.tuples(st.none(), binaries) if v5 else st.just((None, None)),
    )
    return st.builds(
        lambda client_id, clean, keep_alive_s, login, will, props: Connect(
            client_id, version, clean, keep_alive_s, login[0], login[1], will, props
        ),
        texts,
        st.booleans(),
        u16,
        credentials,
        st.one_of(st.none(), wills),
        properties(P.CONNECT) if v5 else none,
    )


def connacks(version: ProtocolVersion) -> SearchStrategy[Connack]:
    if version is V5:
        refusals = st.builds(
            Connack, st.just(False), _codes(reason_codes.CONNACK_CODES), properties(P.CONNACK)
        )
        return st.one_of(refusals, st.builds(Connack, st.booleans(), st.just(0), properties(P.CONNACK)))
    present = st.booleans() if version is V311 else st.just(False)
    return st.one_of(
        st.builds(Connack, present, st.just(0)), st.builds(Connack, st.just(False), st.integers(0, 5))
    )


def publishes(version: ProtocolVersion, reader: Role) -> SearchStrategy[Publish]:
    none: SearchStrategy[Properties | None] = st.none()
    return st.builds(
        _publish,
        st.tuples(topics, st.booleans()),
        st.one_of(st.binary(max_size=40), st.integers(100, 300).map(bytes)),
        st.tuples(qos_levels, positive_u16, st.booleans()),
        st.booleans(),
        properties(P.PUBLISH, reader) if version is V5 else none,
    )


def _publish(
    topic: tuple[str, bool],
    payload: bytes,
    delivery: tuple[int, int, bool],
    retain: bool,
    props: Properties | None,
) -> Publish:
    name, by_alias = topic
    qos, packet_id, dup = delivery
    if by_alias and props is not None and props.topic_alias is not None:
        name = ""
    if not qos:
        return Publish(name, payload, 0, 0, retain, False, props)
    return Publish(name, payload, qos, packet_id, retain, dup, props)


def acknowledgements(version: ProtocolVersion) -> SearchStrategy[Packet]:
    made: list[SearchStrategy[Packet]] = []
    for kind, place, allowed in (
        (Puback, P.PUBACK, reason_codes.PUBACK_CODES),
        (Pubrec, P.PUBREC, reason_codes.PUBACK_CODES),
        (Pubrel, P.PUBREL, reason_codes.PUBREL_CODES),
        (Pubcomp, P.PUBCOMP, reason_codes.PUBREL_CODES),
    ):
        made.append(st.builds(kind, positive_u16))
        if version is V5:
            made.append(st.builds(kind, positive_u16, _codes(allowed), properties(place)))
    return st.one_of(made)


def of_client(version: ProtocolVersion) -> SearchStrategy[Packet]:
    """What a client may send after CONNECT, except DISCONNECT, which ends all."""
    v5 = version is V5
    none: SearchStrategy[Properties | None] = st.none()
    if v5:
        entries = st.one_of(
            st.builds(
                Subscription, plain_filters, qos_levels, st.booleans(), st.booleans(), st.integers(0, 2)
            ),
            st.builds(Subscription, shared_filters, qos_levels, st.just(False), st.booleans()),
        )
    else:
        entries = st.builds(Subscription, filters, qos_levels)
    made: list[SearchStrategy[Packet]] = [
        publishes(version, Role.SERVER),
        acknowledgements(version),
        st.builds(
            Subscribe,
            positive_u16,
            st.lists(entries, min_size=1, max_size=4).map(tuple),
            properties(P.SUBSCRIBE) if v5 else none,
        ),
        st.builds(
            Unsubscribe,
            positive_u16,
            st.lists(filters, min_size=1, max_size=4).map(tuple),
            properties(P.UNSUBSCRIBE) if v5 else none,
        ),
        st.just(Pingreq()),
    ]
    if v5:
        made.append(st.builds(Auth, _codes(reason_codes.AUTH_CODES_OF_CLIENT), properties(P.AUTH)))
    return st.one_of(made)


def of_server(version: ProtocolVersion) -> SearchStrategy[Packet]:
    """What a server may send after CONNACK, except DISCONNECT, which ends all."""
    v5 = version is V5
    codes = reason_codes.SUBACK_CODES if v5 else reason_codes.SUBACK_CODES_3
    made: list[SearchStrategy[Packet]] = [
        publishes(version, Role.CLIENT),
        acknowledgements(version),
        st.builds(Suback, positive_u16, _code_lists(codes), properties(P.SUBACK) if v5 else st.none()),
        st.just(Pingresp()),
    ]
    if v5:
        unsuback_codes = _code_lists(reason_codes.UNSUBACK_CODES)
        made.append(st.builds(Unsuback, positive_u16, unsuback_codes, properties(P.UNSUBACK)))
        made.append(st.builds(Auth, _codes(reason_codes.AUTH_CODES_OF_SERVER), properties(P.AUTH)))
    else:
        made.append(st.builds(Unsuback, positive_u16))
    return st.one_of(made)


def disconnects(version: ProtocolVersion, reader: Role) -> SearchStrategy[Disconnect]:
    if version is not V5:
        return st.just(Disconnect())
    server = reader is Role.SERVER
    allowed = reason_codes.DISCONNECT_CODES_OF_CLIENT if server else reason_codes.DISCONNECT_CODES_OF_SERVER
    return st.builds(Disconnect, _codes(allowed), properties(P.DISCONNECT))
