"""Which Kafka the settings lead to: a URL, and a password that may be in a file."""

from __future__ import annotations

from msgspec.structs import replace

from embermq.adapters.kafka.address import KafkaAddress, parse_address
from embermq.adapters.kafka.settings import KafkaSettings
from embermq.app.errors import StartError
from embermq.app.password_file import read_password


def kafka_address(url: str, settings: KafkaSettings) -> KafkaAddress:
    """Raises ValueError for a URL that cannot be, StartError for a password file that cannot be read."""
    address = parse_address(url)
    if not settings.password_file:
        return address
    password = read_password("kafka.password_file", settings.password_file)
    if not address.username:
        raise StartError(
            f"kafka.password_file: {settings.password_file!r}: stores.log has no user that it is for"
        )
    return replace(address, password=password)
