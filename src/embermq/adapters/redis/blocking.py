"""Redis before the broker serves anybody: each question waits for its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import redis
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import NoPermissionError

from embermq.adapters.redis.address import RedisAddress, RedisSettings
from embermq.adapters.redis.answers import Answer
from embermq.adapters.redis.handshake import NodeUnusable, check_server
from embermq.adapters.redis.script import Script
from embermq.formats.redis_layout import LayoutError, name_in
from embermq.ports.errors import StoreError, StoreUnavailable
from embermq.ports.store_node import Node

Connect = Callable[[Node], Any]
"""A connection to a node, with a time limit."""


def tell_silent(nodes: Iterable[Node], connect: Connect) -> str:
    """One sentence a master that does not answer, with its slots and what there is in its place; "" when no node tells,
    or all masters answer. `nodes` are some of the cluster."""
    view = _view(nodes, connect)
    about: list[str] = []
    for place, node in view.items():
        if "master" not in node["flags"] or not node["slots"] or _answers(_node(place), connect):
            continue
        slots = ", ".join("-".join(each) for each in node["slots"])
        told = f"the master {_node(place)} (slots {slots}) does not answer: bring it back"
        replicas = [one for one, other in view.items() if other["master_id"] == node["node_id"]]
        present = next((one for one in replicas if _answers(_node(one), connect)), "")
        if present:
            told += f", or have its replica {_node(present)} take its place (CLUSTER FAILOVER TAKEOVER)"
        else:
            told += ", or a server with a copy of its data; no replica of it answers"
        about.append(told)
    return "; ".join(about)


def _view(nodes: Iterable[Node], connect: Connect) -> Mapping[str, Any]:
    """The cluster, as the first node sees it that answers."""
    for node in nodes:
        found = _ask(node, connect, "CLUSTER NODES")
        if isinstance(found, Mapping):
            return found
    return {}


def _answers(node: Node, connect: Connect) -> bool:
    return _ask(node, connect, "PING") is not None


def _ask(node: Node, connect: Connect, words: str) -> object:
    """None when it does not answer; an error is an answer."""
    try:
        with connect(node) as connection:
            return connection.execute_command(words)
    except redis.ResponseError as error:
        return str(error)
    except (redis.RedisError, OSError):
        return None


def _node(place: str) -> Node:
    host, _, port = place.rpartition(":")
    return Node(host, int(port))


CONNECT_TIMEOUT_S = 2.0
"""As for the connections of a running broker."""
SCAN_COUNT = 2_000
PIPELINED = 1_000
"""Operations on the wire at a time."""


class BlockingRedis:
    """One Redis, or all masters of a cluster. Raises StoreError, without credentials in it."""

    def __init__(self, address: RedisAddress, settings: RedisSettings) -> None:
        self.address = address
        options: dict[str, Any] = {
            "username": address.username or None,
            "password": address.password or None,
            "socket_timeout": settings.command_timeout_s,
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            "protocol": 2,
        }
        if address.tls:
            options |= {
                "ssl": True,
                "ssl_ca_certs": address.ca_file or None,
                "ssl_certfile": address.cert_file or None,
                "ssl_keyfile": address.cert_file or None,
            }
        self._options = options
        self._cluster: Any = None
        try:
            if address.cluster:
                made: Any = ClusterNode  # it has no types
                nodes = [made(node.host, node.port) for node in address.nodes]
                self._cluster = RedisCluster(startup_nodes=nodes, **options)
                self._masters = [
                    self._cluster.get_redis_connection(node) for node in self._cluster.get_primaries()
                ]
            else:
                node = address.nodes[0]
                self._masters = [redis.Redis(node.host, node.port, db=address.database, **options)]
                self._masters[0].ping()
                check_server(_about(self._masters[0]), cluster=False)
        except NodeUnusable as error:
            self._masters[0].close()
            raise StoreError(f"stores.session: {address}: {error}") from None
        except (redis.RedisError, OSError) as error:
            raise self.failure(error) from error

    def __enter__(self) -> BlockingRedis:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections."""
        for master in self._masters:
            master.close()
        if self._cluster is not None:
            self._cluster.close()

    def failure(self, error: Exception) -> StoreError:
        """What went wrong, as the port tells it."""
        silent = tell_silent(self.address.nodes, self._connect) if self.address.cluster else ""
        return StoreUnavailable(f"stores.session: {self.address}: {error}{'; ' * bool(silent)}{silent}")

    def _connect(self, node: Node) -> Any:
        options = self._options | {"socket_timeout": CONNECT_TIMEOUT_S}
        return redis.Redis(node.host, node.port, **options)

    @property
    def is_cluster(self) -> bool:
        """Whether there may be more than one."""
        return self._cluster is not None

    @property
    def prefix(self) -> str:
        """How all keys begin that are ours."""
        return self.address.prefix

    @property
    def masters(self) -> Sequence[Any]:
        """A connection to each master; of a single server, the one to it."""
        return self._masters

    def command(self, key: str, *words: bytes | str | int) -> Answer:
        """One command, at the node that has `key`."""
        assert key.startswith(self.prefix)
        try:
            return self.at(key).execute_command(*words)  # type: ignore[no-any-return]
        except (redis.RedisError, OSError) as error:
            raise self.failure(error) from error

    def run(self, key: str, script: Script, keys: Sequence[str], args: Sequence[bytes | str | int]) -> Answer:
        """One script, at the node that has `key`."""
        return self.command(key, "EVAL", script.source, len(keys), *keys, *args)

    def at(self, key: str) -> Any:
        """A connection to the node that has `key`."""
        if self._cluster is None:
            return self._masters[0]
        return self._cluster.get_redis_connection(self._cluster.get_node_from_key(key))

    @contextmanager
    def steady(self) -> Iterator[None]:
        """What is read within is whole: raises StoreError when slots of the cluster move meanwhile, since what is on
        its way may be seen twice or not at all."""
        before = self._slots()
        yield
        if self._slots() != before:
            raise StoreError(f"stores.session: {self.address}: slots moved while it was read: start again")

    def _slots(self) -> list[Any]:
        """The slots of each master, by its own word."""
        if self._cluster is None:
            return []
        try:
            views = [master.execute_command("CLUSTER NODES") for master in self._masters]
        except (redis.RedisError, OSError) as error:
            raise self.failure(error) from error
        own = [node for view in views for node in view.values() if "myself" in node["flags"]]
        for node in own:
            for move in node["migrations"]:
                raise StoreError(
                    f"stores.session: {self.address}: slot {move['slot']} is on its way from one node to another, so "
                    "sessions might be missed: start again when it has arrived (redis-cli --cluster check)"
                )
        return [node["slots"] for node in own]

    def keys(self, master: Any, pattern: str) -> Iterator[list[bytes]]:
        """Our keys at one master that match behind the prefix, in lists; one may come twice."""
        cursor: Any = 0
        try:
            while True:
                cursor, found = master.scan(cursor, match=self.prefix + pattern, count=SCAN_COUNT)
                if found:
                    yield found
                if not cursor:
                    return
        except (redis.RedisError, OSError) as error:
            raise self.failure(error) from error

    def names(self, master: Any, prefix: str) -> Iterator[list[str]]:
        """The names in braces of all keys at one master that begin so, each once. Raises LayoutError."""
        seen: set[str] = set()
        for keys in self.keys(master, prefix + "*}"):
            names: list[str] = []
            for key in keys:
                try:
                    name = name_in(key.decode())
                except UnicodeDecodeError as error:
                    raise LayoutError(f"key {key!r}: {error}") from error
                if name not in seen:
                    seen.add(name)
                    names.append(name)
            yield names

    def many(self, master: Any, operations: Sequence[Sequence[bytes | str | int]]) -> list[Any]:
        """Answers to many commands of one master, in order; one that Redis refused is its error."""
        answers: list[Any] = []
        try:
            for first in range(0, len(operations), PIPELINED):
                pipeline = master.pipeline(transaction=False)
                for words in operations[first : first + PIPELINED]:
                    pipeline.execute_command(*words)
                answers += pipeline.execute(raise_on_error=False)
        except (redis.RedisError, OSError) as error:
            raise self.failure(error) from error
        return answers


def _about(server: Any) -> dict[bytes, bytes]:
    """What INFO says; nothing when it is not allowed."""
    try:
        found = server.info()
    except NoPermissionError:
        return {}
    return {str(name).encode(): str(value).encode() for name, value in found.items()}


def unreadable(error: LayoutError) -> StoreError:
    """What is in the store is not what its layout says."""
    return StoreError(f"cannot read what the session store holds: {error}")
