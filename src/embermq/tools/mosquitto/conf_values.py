"""What each setting of Mosquitto is here: the settings that take its place, or why none does."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

Value = bool | int | str | list[str]


class ValueNotTaken(ValueError):
    """The world's fault: Mosquitto knows the value, and here there is none like it. The text says why."""


class ValueTaken(Struct, frozen=True):
    """The value here, and how it differs; "" for not at all."""

    value: Value
    differs: str = ""


Convert = Callable[[str], ValueTaken]


def whole(none: int, most: int, *, least: int = 0) -> Convert:
    """A number; Mosquitto's 0 has no limit, which is `none` here."""

    def convert(text: str) -> ValueTaken:
        number = _number(text)
        if number == 0:
            return ValueTaken(none, "" if none == 0 else f"no limit there; the largest here is {none}")
        if number > most:
            return ValueTaken(most, f"the largest here is {most}")
        if number < least:
            return ValueTaken(least, f"the least here is {least}")
        return ValueTaken(number)

    return convert


def connections(text: str) -> ValueTaken:
    """Mosquitto's -1 has no limit, which is 0 here."""
    return ValueTaken(0) if text == "-1" else whole(0, 1_000_000)(text)


def truth(text: str) -> ValueTaken:
    """Mosquitto takes 1 and 0 too."""
    if text in ("true", "1"):
        return ValueTaken(True)
    if text in ("false", "0"):
        return ValueTaken(False)
    raise ValueNotTaken("is neither true nor false")


def retain_off(text: str) -> ValueTaken:
    """`retain_available false` is a feature that is off."""
    return ValueTaken([] if truth(text).value else ["retain"])


def text_value(text: str) -> ValueTaken:
    """A text, taken as it is. Raises ValueNotTaken when it is empty."""
    if not text:
        raise ValueNotTaken("has no value")
    return ValueTaken(text)


def seconds(text: str) -> ValueTaken:
    """Mosquitto's 2h, 14d, 3w, 1m and 1y, whose months and years have 30 and 365 days."""
    units = {"h": 3_600, "d": 86_400, "w": 604_800, "m": 2_592_000, "y": 31_536_000}
    if not text or text[-1] not in units:
        raise ValueNotTaken("is no time like 14d")
    return whole(0, 4_294_967_294)(str(_number(text[:-1]) * units[text[-1]]))


def versions(text: str) -> ValueTaken:
    """Of MQTT, that Mosquitto counts 3, 4 and 5."""
    named = {"3": "3.1", "4": "3.1.1", "5": "5.0"}
    found = [part.strip() for part in text.split(",")]
    if unknown := [part for part in found if part not in named]:
        raise ValueNotTaken(f"names {unknown[0]!r}, which is none of 3, 4, 5")
    return ValueTaken([named[part] for part in found])


def tls_version(text: str) -> ValueTaken:
    """The oldest version of TLS, as `tls.min_version` has it. Raises ValueNotTaken."""
    if text == "tlsv1.1":
        return ValueTaken("1.2", "TLS 1.1 is refused here; the oldest is 1.2")
    if text in ("tlsv1.2", "tlsv1.3"):
        return ValueTaken(text.removeprefix("tlsv"))
    raise ValueNotTaken("is none of tlsv1.2, tlsv1.3")


def log_level(text: str) -> ValueTaken:
    """Of Mosquitto's kinds of lines only the most talkative ones are a level."""
    if text in ("all", "debug"):
        return ValueTaken("debug")
    raise ValueNotTaken("lines are chosen by level here, logging.level, which is left at info")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueNotTaken("is no whole number")
    return int(text)


BYTES_MAX = 1_099_511_627_776
EVERYWHERE: Mapping[str, tuple[str, Convert]] = {
    "global_max_clients": ("mqtt.sessions_total_max", whole(0, 100_000_000)),
    "global_max_connections": ("clients.connections_max", connections),
    "log_type": ("logging.level", log_level),
    "max_inflight_messages": ("mqtt.inflight_max", whole(65_535, 65_535)),
    "max_keepalive": ("mqtt.keep_alive_max_s", whole(65_535, 65_535)),
    "max_packet_size": ("mqtt.packet_bytes_max", whole(268_435_460, 268_435_460, least=20)),
    "max_queued_bytes": ("device.queue_bytes_max", whole(BYTES_MAX, BYTES_MAX, least=1_024)),
    "max_queued_messages": ("device.queue_limit", whole(65_535, 65_535)),
    "max_topic_alias": ("mqtt.topic_alias_maximum", whole(0, 65_535)),
    "message_size_limit": ("mqtt.payload_bytes_max", whole(0, 268_435_455)),
    "persistent_client_expiration": ("mqtt.session_expiry_max_s", seconds),
    "retain_available": ("mqtt.unavailable", retain_off),
    "sys_interval": ("mqtt.sys_interval_s", whole(0, 86_400)),
}
"""Settings of the whole broker: the one that takes their place, and how the value is read."""

BY_LISTENER: Mapping[str, tuple[str, Convert]] = {
    "accept_protocol_versions": ("protocol_versions", versions),
    "allow_zero_length_clientid": ("allow_empty_client_id", truth),
    "max_connections": ("connections_max", connections),
    "max_qos": ("max_qos", whole(0, 2)),
}
"""Settings of one listener: the key of its table."""

OVER_TLS: Mapping[str, tuple[str, Convert]] = {
    "certfile": ("cert", text_value),
    "keyfile": ("key", text_value),
    "tls_version": ("min_version", tls_version),
}
"""The same, where there is TLS; those about the certificates of clients belong together and are not here."""
