"""Settings of SQL servers; composed by app into the broker's one schema (section `sql`)."""

from typing import Annotated

from msgspec import Meta, Struct


class SqlSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an SQL server is spoken to, where `stores.static` names one."""

    timeout_s: Annotated[float, Meta(ge=0.5, le=3_600)] = 5.0
    """How long opening a connection may take, with PostgreSQL in whole seconds and at least 2; how long the answer to a
    statement may, and how long a call waits for a free connection."""
