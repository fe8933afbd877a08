"""Which Redis the settings lead to: a URL, and a password that may be in a file."""

from __future__ import annotations

from msgspec.structs import replace

from embermq.adapters.redis.address import RedisAddress, parse_address
from embermq.adapters.redis.settings import RedisSettings
from embermq.app.password_file import read_password


def redis_address(url: str, settings: RedisSettings) -> RedisAddress:
    """Raises ValueError for a URL that cannot be, StartError for a password file that cannot be read."""
    address = parse_address(url)
    if not settings.password_file:
        return address
    password = read_password("redis.password_file", settings.password_file)
    return replace(address, password=password)
