"""Which masters of a Redis Cluster do not answer, for who has to bring them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import redis

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
