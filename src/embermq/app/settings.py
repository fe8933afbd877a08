"""Which store holds what; composed into the broker's one schema (section `stores`).

There are two profiles: embedded, all in the data directory, and servers, a Kafka together with a Redis. Accounts and
archived messages may be in a database with either.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from embermq.adapters.kafka import address as kafka_address
from embermq.adapters.redis.address import parse_address
from embermq.database.database_url import parse_url
from embermq.ports.store_url import without_password

SQLITE = "sqlite"
"""The embedded store, in the data directory."""
ALONE = (
    "{0}: sqlite does not go with {1}: a broker keeps its data in its directory, or in a Kafka and a Redis; set {0} to "
    "{2}, or both to sqlite (docs/stores.md)"
)
"""What a Kafka without a Redis is told, and a Redis without a Kafka."""


class StoreSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Stores for data that several brokers share or that survives a machine; see [stores](stores.md)."""

    log: str = SQLITE
    """The message log: `sqlite` for the data directory, or `kafka://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...]`, and
    `kafka+ssl://` likewise, together with a Redis in `session`. How its servers let the broker in follows behind a `?`
    ([options](stores.md#passwords-and-certificates))."""
    session: str = SQLITE
    """Sessions, what is queued for them, and retained messages: `sqlite` for the data directory, or
    `redis://[[USER]:PASSWORD@]HOST:PORT[/DATABASE]`, `rediss://` with TLS, `redis+cluster://HOST:PORT,HOST:PORT` and
    `rediss+cluster://`, with options too; together with a Kafka in `log`."""
    static: str = SQLITE
    """Accounts and archived messages: `sqlite` for the data directory, or
    `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`, `mysql://` or `mariadb://` likewise, with options."""

    def __repr__(self) -> str:
        """Without passwords, so that no log can hold them."""
        shown = self.shown()
        return f"StoreSettings(log={shown.log!r}, session={shown.session!r}, static={shown.static!r})"

    def shown(self) -> StoreSettings:
        """The same without passwords."""
        return replace(
            self,
            log=without_password(self.log),
            session=without_password(self.session),
            static=without_password(self.static),
        )


def check_settings(settings: StoreSettings) -> None:
    """Raise ValueError, naming the setting, for what names no store; the text has no password."""
    if settings.log != SQLITE:
        try:
            kafka_address.parse_address(settings.log)
        except ValueError as error:
            raise ValueError(f"stores.log: {error}; or {SQLITE} for the data directory") from None
    if settings.session != SQLITE:
        try:
            parse_address(settings.session)
        except ValueError as error:
            raise ValueError(f"stores.session: {error}; or {SQLITE} for the data directory") from None
    _check_profile(settings.shown())
    if settings.static != SQLITE:
        try:
            parse_url(settings.static)
        except ValueError as error:
            raise ValueError(f"stores.static: {error}; or {SQLITE} for the data directory") from None


def _check_profile(shown: StoreSettings) -> None:
    """Raises ValueError for a Kafka without a Redis and the other way round."""
    if shown.log != SQLITE and shown.session == SQLITE:
        raise ValueError(ALONE.format("stores.session", f"stores.log = {shown.log}", "redis://HOST:PORT"))
    if shown.session != SQLITE and shown.log == SQLITE:
        raise ValueError(ALONE.format("stores.log", f"stores.session = {shown.session}", "kafka://HOST:PORT"))
