"""Migrated sessions into Redis or Redis Cluster, in the broker's layout (formats/redis_layout.py).

Up to some thousand messages of a client are one script (import_many.lua) together with its session, so what has a place
is whole, however a run ends.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

from msgspec import Struct

from embermq.formats.log_record import LogRecord
from embermq.formats.redis_layout import (
    LOG_KEY,
    PACKET_TYPE_AT,
    PUBLISH_HEAD,
    PUBREL_TYPE,
    SCHEMA_KEY,
    SCHEMA_VERSION,
    SESSION_PREFIX,
    LayoutError,
    client_keys,
    decode_schema,
    decode_session,
    encode_schema,
    encode_session,
    encode_tail,
    score_of,
    seq_of,
)
from embermq.model.session_writes import QueueState
from embermq_migrate.errors import MigrationError
from embermq_migrate.session_target import ClientWrites, Known, SessionTarget

TIMEOUT_S = 30
SCAN_COUNT = 2_000
CONNECT_TIMEOUT_S = 10
_IMPORT = files(__package__ or "").joinpath("import_many.lua").read_text()


class RedisPlace(Struct, frozen=True, kw_only=True):
    """A Redis, or some nodes of a cluster. `shown` is what people may see of it."""

    shown: str
    nodes: tuple[tuple[str, int], ...]
    cluster: bool = False
    database: int = 0
    username: str = ""
    password: str = ""
    tls: bool = False
    ca_file: str = ""
    certificate_file: str = ""


class RedisSessionTarget(SessionTarget):
    """See the base."""

    def __init__(self, place: RedisPlace) -> None:
        self._place = place.shown
        self._redis = connect(place)

    def known(self, client_ids: list[str]) -> dict[str, Known]:
        keys = [client_keys(client_id, "") for client_id in client_ids]
        with told(f"cannot read from {self._place}"):
            pipe = self._redis.pipeline(transaction=False) if keys else None
            if pipe is None:
                return {}
            for key in keys:
                pipe.get(key.session)
                pipe.zrange(key.messages, 0, -1, withscores=True)
            answers = pipe.execute()
        found: dict[str, Known] = {}
        for index, (client_id, key) in enumerate(zip(client_ids, keys, strict=True)):
            session, members = answers[2 * index], answers[2 * index + 1]
            if session is None and not members:
                continue
            row = decode_session(key.session, session) if session is not None else None
            prefix = len(key.message.encode())
            places = {seq_of(score): int(member[prefix:]) for member, score in members}
            found[client_id] = Known(row.generation if row else 0, row.epoch if row else 0, places)
        return found

    def write(self, clients: list[ClientWrites]) -> None:
        with told(f"cannot write to {self._place}"):
            pipe = self._redis.pipeline(transaction=False)
            for client in clients:
                _put(pipe, client)
            pipe.execute()

    def close(self) -> None:
        self._redis.close()


def _put(pipe: Any, client: ClientWrites) -> None:
    keys = client_keys(client.client_id, "")
    session = encode_session(client.session) if client.session is not None else b""
    words: list[bytes | str | int] = [session, client.last_packet_id, keys.message]
    for row, message in client.rows:
        head = PUBLISH_HEAD % row.packet_id
        is_released = row.state == QueueState.RELEASED
        if is_released:
            end = PACKET_TYPE_AT + len(PUBREL_TYPE)
            head = head[:PACKET_TYPE_AT] + PUBREL_TYPE + head[end:]
        body = head.encode() + encode_tail(row, client.client_id, LogRecord(message))
        words += (row.packet_id, score_of(row.seq), row.expires_ms, body, "1" if is_released else "")
    # EVAL, not EVALSHA: pipelines of a cluster take no other; the text is short beside what it carries.
    pipe.execute_command(
        "EVAL", _IMPORT, 4, keys.session, keys.messages, keys.last_packet_id, keys.released, *words
    )


def claim_store(at: RedisPlace, *, read_only: bool) -> None:
    """Make a new store one of EmberMQ that knows no log yet; refuse one of another layout, and one whose broker may be
    running. Raises MigrationError."""
    place = at.shown
    client = connect(at)
    try:
        with told(f"cannot use {place}"):
            client.ping()
            value = client.get(SCHEMA_KEY)
            if value is None:
                stranger = next(client.scan_iter(match=f"{SESSION_PREFIX}*", count=SCAN_COUNT), None)
                if stranger is not None:
                    raise MigrationError(
                        f"{place} has key {stranger.decode(errors='replace')!r} but no {SCHEMA_KEY}: it holds data that"
                        " EmberMQ cannot place; empty it, or name another one"
                    )
                if read_only:
                    return
                client.set(SCHEMA_KEY, encode_schema(""), nx=True)
                value = client.get(SCHEMA_KEY)
            schema = decode_schema(value)
            is_in_use = not read_only and client.hget(LOG_KEY, "closed") == b"0"
    finally:
        client.close()
    if schema.version != SCHEMA_VERSION:
        raise MigrationError(
            f"{place} has layout version {schema.version} of EmberMQ's session data, this is {SCHEMA_VERSION}"
        )
    if is_in_use:
        raise MigrationError(
            f"{place}: its broker is running, or has not ended in order: stop it, or start it once more and stop it"
        )


def take_generations(at: RedisPlace, count: int) -> int:
    """Take `count` generations that no session has or gets; returns the first. The broker is down."""
    client = connect(at)
    try:
        with told(f"cannot write to {at.shown}"):
            client.hsetnx(LOG_KEY, "generations", 1)
            return int(client.hincrby(LOG_KEY, "generations", count)) - count
    finally:
        client.close()


def connect(place: RedisPlace) -> Any:
    """A client of one node or of a cluster. Raises MigrationError."""
    try:
        import redis
        import redis.cluster
    except ImportError as error:
        raise MigrationError(
            "writing to Redis needs embermq[servers]: run `make servers`, or pip install 'embermq[servers]'"
        ) from error
    options: dict[str, Any] = {
        "username": place.username or None,
        "password": place.password or None,
        "socket_timeout": TIMEOUT_S,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
    }
    if place.tls:
        options |= {
            "ssl": True,
            "ssl_ca_certs": place.ca_file or None,
            "ssl_certfile": place.certificate_file or None,
            "ssl_keyfile": place.certificate_file or None,
        }
    with told(f"cannot reach {place.shown}"):
        if not place.cluster:
            host, port = place.nodes[0]
            return redis.Redis(host, port, db=place.database, **options)
        cluster: Any = redis.cluster  # it has no types for these
        nodes = [cluster.ClusterNode(host, port) for host, port in place.nodes]
        return cluster.RedisCluster(startup_nodes=nodes, **options)


@contextmanager
def told(doing: str) -> Iterator[None]:
    """What went wrong in one line; the client's own texts name hosts and never a password."""
    import redis

    try:
        yield
    except (redis.RedisError, LayoutError, OSError) as error:
        text = " ".join(str(error).rpartition("caused error: ")[2].split())  # a pipeline repeats the command
        raise MigrationError(f"{doing}: {text or type(error).__name__}") from None
