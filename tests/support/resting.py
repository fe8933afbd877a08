"""Servers that all tests of a worker share stand still while its tests need none: an idle Kafka takes 3 % of a core,
and each worker has one for most of a run. Who takes one heals it first, and then it goes on where it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.server_process import ServerProcess

_resting: list[ServerProcess] = []


@contextmanager
def at_rest_between(server: ServerProcess) -> Iterator[None]:
    """Meanwhile `let_rest` pauses this server, which runs."""
    _resting.append(server)
    try:
        yield
    finally:
        _resting.remove(server)


def let_rest() -> None:
    """Between two files, when nobody asks a server anything."""
    for server in _resting:
        if server.is_running:
            server.pause()
